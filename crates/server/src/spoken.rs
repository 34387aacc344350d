//! What is said below the routes: HTTP/1 refuses what it cannot read by a bare line, before there is a request. On its way
//! out that line becomes a problem like any other. HTTP/2 does so in frames, which stay as they are.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use abide_protocol::Problem;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose bare refusals are problems.
pub(crate) struct Spoken<S> {
    stream: S,
    /// What takes the place of a refusal, as far as it was not written yet.
    instead: Vec<u8>,
}

impl<S> Spoken<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, instead: Vec::new() }
    }
}

impl<S: AsyncWrite + Unpin> Spoken<S> {
    /// Writes what takes the place of a refusal to its end.
    fn poll_instead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.instead.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(context, &self.instead))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.instead.drain(..written);
        }
        Poll::Ready(Ok(()))
    }
}

/// The problem that a refusal of the library stands for, as it is sent. Every answer of ours has a body, and none of them
/// begins like this.
fn problem(written: &[u8]) -> Option<Vec<u8>> {
    if !written.starts_with(b"HTTP/1.1 4") {
        return None;
    }
    let head = std::str::from_utf8(written).ok().filter(|head| head.ends_with("\r\n\r\n"))?;
    if !head.to_ascii_lowercase().contains("\r\ncontent-length: 0\r\n") {
        return None;
    }
    let line = head.lines().next().unwrap_or_default();
    let problem = match line.split(' ').nth(1)? {
        "400" => Problem::new("bad_request", "what came is not HTTP: its first line or a header cannot be read")
            .but("METHOD PATH HTTP/1.1, and headers of the form Name: value", "something else"),
        "414" => Problem::new("uri_too_long", "the path and its query are too long"),
        "431" => Problem::new("headers_too_large", "the headers are too many or too large"),
        _ => return None,
    };
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let said = format!(
        "{line}\r\ncontent-type: {}\r\ncache-control: no-store\r\nx-content-type-options: nosniff\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{body}",
        Problem::MEDIA_TYPE,
        body.len()
    );
    Some(said.into_bytes())
}

impl<S: AsyncRead + Unpin> AsyncRead for Spoken<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Spoken<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(context))?;
        if let Some(instead) = problem(bytes) {
            self.instead = instead;
            // What does not fit now goes with the flush that follows.
            if let Poll::Ready(Err(error)) = self.poll_instead(context) {
                return Poll::Ready(Err(error));
            }
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_instead(context))?;
        if let [only] = parts
            && only.starts_with(b"HTTP/1.1 4")
        {
            return self.poll_write(context, only);
        }
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_instead(context))?;
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bare_refusal_becomes_a_problem() {
        let bare = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\ndate: today\r\n\r\n");
        for (status, code) in [
            ("400 Bad Request", "bad_request"),
            ("414 URI Too Long", "uri_too_long"),
            ("431 Request Header Fields Too Large", "headers_too_large"),
        ] {
            let said = String::from_utf8(problem(bare(status).as_bytes()).unwrap()).unwrap();
            assert!(said.starts_with(&format!("HTTP/1.1 {status}\r\n")) && said.contains(code), "{said}");
        }
        assert_eq!(problem(bare("404 Not Found").as_bytes()), None);
        assert_eq!(problem(bare("200 OK").as_bytes()), None);
        assert_eq!(problem(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}"), None);
        assert_eq!(problem(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n"), None);
        assert_eq!(problem(b"HTTP/1.1 400 \xff\r\ncontent-length: 0\r\n\r\n"), None);
    }

    /// Byte by byte, if the connection takes no more at once.
    #[tokio::test]
    async fn a_refusal_is_written_to_its_end() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let (ours, mut theirs) = tokio::io::duplex(1);
        let write = async {
            let mut spoken = Spoken::new(ours);
            spoken.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            spoken.shutdown().await.unwrap();
        };
        let mut said = String::new();
        let (_, read) = tokio::join!(write, theirs.read_to_string(&mut said));
        read.unwrap();
        let (head, body) = said.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())) && body.ends_with('}'), "{said}");
    }
}
