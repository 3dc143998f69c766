//! What can go wrong on the web, in words for the person who waits for a model.

use std::fmt;
use std::io;
use std::time::Duration;

use ureq::Timeout;

use super::address::Address;

/// Why an answer was not had.
#[derive(Debug)]
pub(crate) struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    /// Who was asked last, behind all redirects.
    at: Address,
    kind: Kind,
}

/// What happened.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The server answered with an error.
    Status {
        code: u16,
        /// The hub's own name for it, empty where there is none.
        name: String,
        /// The hub's own words.
        words: String,
        /// How long the server wants to be left alone.
        wait: Option<Duration>,
    },
    /// There was no answer.
    Transport(ureq::Error),
    /// The content ended before it should, or the connection broke.
    Broken { got: u64, of: Option<u64>, cause: Option<io::Error> },
    /// The content is not what the answer's head says.
    Senseless(String),
    /// Redirects lead on and on.
    Redirects(usize),
    /// A redirect leads to no usable address.
    Redirect(String),
    /// Content would come over a connection that anybody can change.
    Plain,
}

impl Failure {
    pub(crate) fn new(at: &Address, kind: Kind) -> Failure {
        Failure(Box::new(Inner { at: at.clone(), kind }))
    }

    /// The status, if the server answered with an error.
    pub(crate) fn status(&self) -> Option<u16> {
        match self.0.kind {
            Kind::Status { code, .. } => Some(code),
            _ => None,
        }
    }

    /// The hub's own name for the error.
    pub(crate) fn name(&self) -> &str {
        match &self.0.kind {
            Kind::Status { name, .. } => name,
            _ => "",
        }
    }

    /// Whether it may go better in a while.
    pub(crate) fn passes(&self) -> bool {
        match &self.0.kind {
            Kind::Status { code, .. } => matches!(code, 408 | 425 | 429 | 500 | 502 | 503 | 504),
            Kind::Transport(error) => !is_tls(error) && passes(error),
            Kind::Broken { .. } => true,
            _ => false,
        }
    }

    /// Whether nobody was reached at all. That rarely passes by waiting: a name is wrong, or this computer is offline.
    pub(crate) fn is_unreached(&self) -> bool {
        match &self.0.kind {
            Kind::Transport(error) => {
                !is_tls(error)
                    && (is_lookup(error)
                        || is_refused(error)
                        || matches!(
                            error,
                            ureq::Error::ConnectionFailed
                                | ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)
                        ))
            }
            _ => false,
        }
    }

    /// How long the server wants to be left alone.
    pub(crate) fn wait(&self) -> Option<Duration> {
        match self.0.kind {
            Kind::Status { wait, .. } => wait,
            _ => None,
        }
    }
}

fn passes(error: &ureq::Error) -> bool {
    matches!(
        error,
        ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
    )
}

/// Whether the name of a host leads nowhere. The standard library has no kind for that.
fn is_lookup(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::HostNotFound => true,
        ureq::Error::Io(error) => error.to_string().contains("failed to lookup address"),
        _ => false,
    }
}

/// Whether the system says that there is no way to the host, or nobody there.
fn is_refused(error: &ureq::Error) -> bool {
    use io::ErrorKind::{
        AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
    };
    let kinds = [AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable];
    matches!(error, ureq::Error::Io(error) if kinds.contains(&error.kind()))
}

/// What to do where nobody was reached.
const OFFLINE: &str = "check the connection to the internet, and HTTPS_PROXY if there is a proxy. What was fetched before needs no \
                       connection: `gristmill models` lists it, and `-m FILE` takes a file that is here";

fn is_tls(error: &ureq::Error) -> bool {
    match error {
        ureq::Error::Rustls(_) | ureq::Error::Tls(_) | ureq::Error::TlsRequired => true,
        ureq::Error::Io(error) => error.get_ref().is_some_and(|e| e.is::<rustls::Error>()),
        _ => false,
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = &self.0.at;
        let host = at.origin().host;
        match &self.0.kind {
            Kind::Status { code, words, wait, .. } => {
                write!(f, "{at} answers with {code} ({})", meaning(*code))?;
                if !words.is_empty() {
                    write!(f, ": {words}")?;
                }
                match wait {
                    Some(wait) => write!(f, "; try again in {} s", wait.as_secs()),
                    None => Ok(()),
                }
            }
            Kind::Transport(error) if is_tls(error) => write!(
                f,
                "the connection to {host} is not secure: {error}. Check this computer's clock; where a proxy looks into \
                 connections, its certificate has to be in the system's store"
            ),
            Kind::Transport(error) if is_lookup(error) => write!(f, "{host} is not found: {OFFLINE}"),
            Kind::Transport(ureq::Error::Timeout(Timeout::Connect | Timeout::Resolve)) => {
                write!(f, "{host} does not answer: {OFFLINE}")
            }
            Kind::Transport(ureq::Error::Timeout(_)) => write!(f, "{host} answers no more"),
            Kind::Transport(ureq::Error::ConnectProxyFailed(words)) => {
                write!(f, "the proxy that HTTPS_PROXY names does not lead to {host}: {words}")
            }
            Kind::Transport(ureq::Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                write!(f, "nobody answers at {at}: the connection was refused; {OFFLINE}")
            }
            Kind::Transport(error) if self.is_unreached() => {
                write!(f, "{host} is not reached ({error}): {OFFLINE}")
            }
            Kind::Transport(error) => write!(f, "{at} cannot be read: {error}"),
            Kind::Broken { got, of, cause } => {
                write!(f, "{at} broke off after {got} bytes")?;
                of.iter().try_for_each(|of| write!(f, " of {of}"))?;
                cause.iter().try_for_each(|cause| write!(f, " ({cause})"))
            }
            Kind::Senseless(words) => write!(f, "{at} gives an answer that makes no sense: {words}"),
            Kind::Redirects(most) => {
                write!(f, "{at}: more than {most} redirects lead from one to the next, or in a circle")
            }
            Kind::Redirect(words) => write!(f, "{at} leads to another place that is not used: {words}"),
            Kind::Plain => write!(
                f,
                "{at} is no https address: anybody between here and there could change what comes. `pull \
                 --allow-http` fetches it all the same"
            ),
        }
    }
}

fn meaning(code: u16) -> &'static str {
    match code {
        400 => "bad request",
        401 => "not authorised",
        403 => "forbidden",
        404 => "not found",
        408 => "timed out",
        410 => "gone",
        429 => "too many requests",
        451 => "not available for legal reasons",
        500 => "fault of the server",
        502..=504 => "server not available",
        _ => "refused",
    }
}
