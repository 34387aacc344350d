//! The written form of labels: `name=value`, each on a line of its own, with a line break before the first and behind the
//! last. So one label is found in an index row by its line, breaks included, and people can read the column.

use abide_kernel::Str;

/// All labels of a run; nothing for none.
pub(crate) fn written(labels: &[(Str, Str)]) -> Option<String> {
    let mut text = String::new();
    for (name, value) in labels {
        // The break behind one is the break before the next.
        text.truncate(text.trim_end_matches('\n').len());
        text.push_str(&line(name, value));
    }
    (!text.is_empty()).then_some(text)
}

/// One label, between its breaks. No other label is written like it, nor has it inside.
pub(crate) fn line(name: &str, value: &str) -> String {
    format!("\n{}={}\n", escape(name).replace('=', "\\="), escape(value))
}

/// The labels that were written.
pub(crate) fn read(text: &str) -> Vec<(Str, Str)> {
    text.split('\n').filter(|line| !line.is_empty()).map(read_line).collect()
}

/// PostgreSQL keeps no zero byte, and a break would end the line.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\0', "\\0").replace('\n', "\\n")
}

fn read_line(line: &str) -> (Str, Str) {
    let (mut name, mut value) = (String::new(), None);
    let mut signs = line.chars();
    while let Some(sign) = signs.next() {
        let sign = match sign {
            '\\' => match signs.next() {
                Some('0') => '\0',
                Some('n') => '\n',
                other => other.unwrap_or('\\'),
            },
            '=' if value.is_none() => {
                value = Some(String::new());
                continue;
            }
            sign => sign,
        };
        value.as_mut().unwrap_or(&mut name).push(sign);
    }
    (name.into(), value.unwrap_or_default().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_labels_can_be_written_and_read_back() {
        let words = ["team", "a=b", "=", "\\", "\\=", "ж\0", "a\nb", "\\n", "x\n", ""];
        let mut labels: Vec<(Str, Str)> = Vec::new();
        for name in words {
            for value in words {
                labels.push((name.into(), value.into()));
            }
        }
        for count in 0..=labels.len() {
            let text = written(&labels[..count]);
            assert_eq!(text.is_none(), count == 0);
            assert_eq!(text.as_deref().map_or_else(Vec::new, read), labels[..count]);
        }
    }

    #[test]
    fn a_label_is_found_by_its_line_and_no_other_is() {
        let words = ["a", "a=b", "b", "=", "\\", "\n", "a\nb", ""];
        let pairs =
            || words.iter().flat_map(|name| words.iter().map(move |value| (Str::from(*name), Str::from(*value))));
        for one in pairs() {
            for other in pairs() {
                let text = written(&[one.clone(), other.clone()]).unwrap();
                for wanted in pairs() {
                    let found = text.contains(&line(&wanted.0, &wanted.1));
                    assert_eq!(found, wanted == one || wanted == other, "{wanted:?} in {text:?}");
                }
            }
        }
    }
}
