//! Passwords as they are given: typed where nobody sees them, or in a file; never as an option, which others could read in the
//! list of processes.

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use abide_protocol::Password;
use clap::Args;

use crate::failure::{Exit, Failure};

/// Where a password comes from.
#[derive(Clone, Debug, Args)]
pub(crate) struct PasswordFrom {
    /// A file whose first line is the password, or - for standard input; without it, it is asked for at the terminal
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// More than any password has.
const BYTES_MAX: u64 = 64 * 1024;

impl PasswordFrom {
    pub(crate) fn read(&self, name: &str) -> Result<Password, Failure> {
        match &self.password_file {
            Some(path) if path.as_os_str() == "-" => first_line(io::stdin().lock(), "standard input"),
            Some(path) => {
                let shown = path.display().to_string();
                let file = std::fs::File::open(path).map_err(|error| unreadable(&shown, &error))?;
                first_line(file, &shown)
            }
            None if io::stdin().is_terminal() => typed(name),
            None => Err(Failure::usage("no_terminal", "there is no terminal at which to ask for the password")
                .hint("give it with --password-file FILE, or --password-file - for standard input")),
        }
    }
}

fn typed(name: &str) -> Result<Password, Failure> {
    let ask = |prompt: &str| rpassword::prompt_password(prompt).map_err(|error| unreadable("the terminal", &error));
    let password = ask(&format!("password for {name}: "))?;
    if password != ask("once more: ")? {
        return Err(Failure::new(Exit::Failure, "not_the_same", "the two passwords are not the same")
            .hint("nothing was changed; try again"));
    }
    Ok(Password::new(password))
}

fn first_line(from: impl Read, what: &str) -> Result<Password, Failure> {
    let mut text = String::new();
    from.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| unreadable(what, &error))?;
    Ok(Password::new(text.lines().next().unwrap_or_default()))
}

fn unreadable(what: &str, error: &io::Error) -> Failure {
    Failure::usage("unreadable", format!("{what} cannot be read: {error}"))
}
