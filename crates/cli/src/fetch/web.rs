//! Asking servers: redirects, secrets, time limits and patience.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use ureq::http::{HeaderMap, HeaderName, header};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::address::{Address, Origin};
use super::failure::{Failure, Kind};
use super::store::{path_in, user_cache};
use crate::output::{note, warn};

/// The hub that `hf:` names, unless option or environment say another.
const HUB: &str = "https://huggingface.co";

const MOST_REDIRECTS: usize = 10;

/// Answers other than files are not longer.
const MOST_JSON: u64 = 32 << 20;

/// A server that wants to be left alone for longer is told of instead of waited for.
const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A failure to reach anybody that took longer is not tried again.
const LONG_TRY: Duration = Duration::from_secs(2);

const FIRST_WAIT: Duration = Duration::from_millis(500);

/// How models are fetched.
#[derive(Clone, Debug)]
pub(crate) struct WebOptions {
    /// Address of the hub; else that of `HF_ENDPOINT`, else the public one.
    pub(crate) hub: Option<String>,
    /// Unencrypted connections are allowed to any host.
    pub(crate) allow_http: bool,
    /// How often what may pass is tried again without a byte gained.
    pub(crate) retries: u32,
    /// How long a server may be silent.
    pub(crate) silence: Duration,
}

impl Default for WebOptions {
    fn default() -> WebOptions {
        WebOptions { hub: None, allow_http: false, retries: 5, silence: Duration::from_secs(60) }
    }
}

/// A way to servers.
pub(crate) struct Web {
    agent: Agent,
    /// The hub's address.
    pub(crate) hub: Address,
    token: Option<String>,
    allow_http: bool,
    retries: u32,
}

/// An answer that is no error.
pub(crate) struct Reply {
    /// Who gave it, behind all redirects.
    pub(crate) at: Address,
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Body,
}

impl Reply {
    pub(crate) fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The hub's address by option, environment or default.
///
/// # Errors
/// What is given is no address.
pub(crate) fn hub(given: Option<&str>) -> Result<Address> {
    let variable = std::env::var("HF_ENDPOINT").ok().filter(|v| !v.trim().is_empty());
    match (given, variable) {
        (Some(given), _) => Address::parse(given.trim_end_matches('/')).context("--hub"),
        (None, Some(set)) => Address::parse(set.trim().trim_end_matches('/')).context("HF_ENDPOINT"),
        (None, None) => Ok(public_hub()),
    }
}

/// The hub that is asked unless another is named.
pub(crate) fn public_hub() -> Address {
    Address::parse(HUB).expect("the constant is an address")
}

/// The token for the hub: of the environment, else of the file where the hub's own tools keep it.
fn token() -> Option<String> {
    let usable = |token: String| {
        let token = token.trim().to_owned();
        (!token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic())).then_some(token)
    };
    let variables = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
    if let Some(token) = variables.into_iter().find_map(|name| usable(std::env::var(name).ok()?)) {
        return Some(token);
    }
    let file = path_in("HF_TOKEN_PATH")
        .or_else(|| Some(path_in("HF_HOME")?.join("token")))
        .or_else(|| Some(user_cache()?.join("huggingface/token")))?;
    usable(std::fs::read_to_string(file).ok()?)
}

/// The system's certificates, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
fn certificates() -> Vec<Certificate<'static>> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        warn(
            "this system has no certificates, so no https address will be trusted: install them (as `ca-certificates`)",
        );
    }
    found.certs.iter().map(|cert| Certificate::from_der(cert).to_owned()).collect()
}

impl Web {
    /// # Errors
    /// The hub's address is none.
    pub(crate) fn new(options: &WebOptions) -> Result<Web> {
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::new_with_certs(&certificates()))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        // Proxies are those of the environment.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")))
            // The bytes are to be those of the file.
            .accept_encoding("identity")
            .tls_config(tls)
            .timeout_resolve(Some(options.silence))
            .timeout_connect(Some(options.silence))
            .timeout_recv_response(Some(options.silence))
            .timeout_per_read(Some(options.silence))
            .timeout_per_write(Some(options.silence))
            .build();
        Ok(Web {
            agent: config.new_agent(),
            hub: hub(options.hub.as_deref())?,
            token: token(),
            allow_http: options.allow_http,
            retries: options.retries,
        })
    }

    /// Whether a token goes to the hub.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks once, and follows redirects. The token goes to the hub and to nobody else.
    pub(crate) fn get(&self, address: &Address, headers: &[(HeaderName, String)]) -> Result<Reply, Failure> {
        let mut at = address.clone();
        let mut seen = vec![];
        let fail = |at: &Address, kind| Failure::new(at, kind);
        loop {
            let origin = at.origin();
            if !origin.secure && !origin.is_local() && !self.allow_http {
                return Err(fail(&at, Kind::Plain));
            }
            let mut request = self.agent.get(at.uri());
            for (name, value) in headers {
                request = request.header(name, value);
            }
            if let Some(token) = self.token_for(&origin) {
                request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| fail(&at, Kind::Transport(e)))?;
            let (parts, body) = response.into_parts();
            let text = |name: &str| parts.headers.get(name).and_then(|v| v.to_str().ok());
            match (parts.status.as_u16(), text("location")) {
                (301 | 302 | 303 | 307 | 308, Some(location)) => {
                    let next = at.join(location).map_err(|e| fail(&at, Kind::Redirect(e.to_string())))?;
                    seen.push(std::mem::replace(&mut at, next));
                    if seen.len() > MOST_REDIRECTS || seen.contains(&at) {
                        return Err(fail(&at, Kind::Redirects(MOST_REDIRECTS)));
                    }
                }
                (status @ (200 | 206), _) => {
                    return Ok(Reply { at, status, headers: parts.headers, body });
                }
                (code, _) => {
                    let name = text("x-error-code").unwrap_or_default().to_owned();
                    let words = text("x-error-message").unwrap_or_default();
                    // Of somebody else's making: one line of it.
                    let words = words.chars().filter(|c| !c.is_control()).take(300).collect();
                    let wait =
                        text("retry-after").and_then(|v| v.trim().parse().ok()).map(Duration::from_secs);
                    return Err(fail(&at, Kind::Status { code, name, words, wait }));
                }
            }
        }
    }

    fn token_for(&self, origin: &Origin) -> Option<&str> {
        self.token.as_deref().filter(|_| *origin == self.hub.origin())
    }

    /// Does what may fail for a while again, until it succeeds, or has failed too often in a row without `gained` having
    /// grown. Where nobody was reached from the start, once more and soon, which is nothing to tell.
    pub(crate) fn patiently<T>(
        &self,
        mut gained: impl FnMut() -> u64,
        mut attempt: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut failed, mut before) = (0, gained());
        let start = before;
        loop {
            let began = Instant::now();
            let failure = match attempt() {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            let now = gained();
            failed = if now > before { 1 } else { failed + 1 };
            before = now;
            let wait = match failure.wait() {
                Some(wait) => wait,
                None => FIRST_WAIT * 2u32.saturating_pow(failed.min(8) - 1),
            };
            let unreached = failure.is_unreached() && now == start;
            let most = match unreached {
                // The system has tried for a while itself.
                true if began.elapsed() > LONG_TRY => 0,
                true => self.retries.min(1),
                false => self.retries,
            };
            if !failure.passes() || failed > most || wait > LONGEST_WAIT {
                return Err(failure);
            }
            if unreached {
                std::thread::sleep(FIRST_WAIT);
                continue;
            }
            note(format_args!("{failure}; going on in {:.1} s", wait.as_secs_f64()));
            std::thread::sleep(wait);
        }
    }

    /// An answer of some size at most, with its headers, patiently.
    pub(crate) fn bytes(&self, address: &Address, most: u64) -> Result<(Vec<u8>, HeaderMap), Failure> {
        self.patiently(
            || 0,
            || {
                let reply = self.get(address, &[])?;
                let at = reply.at;
                let mut body = reply.body;
                let limited = body.with_config().limit(most).read_to_vec();
                match limited {
                    Ok(bytes) => Ok((bytes, reply.headers)),
                    Err(ureq::Error::BodyExceedsLimit(_)) => {
                        Err(Failure::new(&at, Kind::Senseless(format!("it is longer than {most} bytes"))))
                    }
                    Err(ureq::Error::Io(cause)) => {
                        Err(Failure::new(&at, Kind::Broken { got: 0, of: None, cause: Some(cause) }))
                    }
                    Err(error) => Err(Failure::new(&at, Kind::Transport(error))),
                }
            },
        )
    }

    /// An answer in JSON, with its headers, patiently.
    pub(crate) fn json<T: DeserializeOwned>(&self, address: &Address) -> Result<(T, HeaderMap), Failure> {
        let (bytes, headers) = self.bytes(address, MOST_JSON)?;
        match serde_json::from_slice(&bytes) {
            Ok(value) => Ok((value, headers)),
            Err(e) => Err(Failure::new(address, Kind::Senseless(e.to_string()))),
        }
    }
}
