//! Addresses on the web: parsed once, shown without what may be secret.

use std::fmt;

use anyhow::{Result, bail};
use ureq::http::Uri;

/// An `http` or `https` address without user, password and fragment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Address(Uri);

impl Address {
    /// # Errors
    /// It is no such address.
    pub(crate) fn parse(text: &str) -> Result<Address> {
        // Addresses may carry what is secret behind the `?`.
        let shown = text.split('?').next().unwrap_or_default();
        let uri = text.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
        let Some(uri) = uri.filter(|uri| uri.host().is_some_and(|host| !host.is_empty())) else {
            bail!("`{shown}` is no address: it begins with https:// and the name of a host");
        };
        if uri.authority().is_some_and(|a| a.as_str().contains('@')) {
            bail!("an address with a user or a password in it is not used: give it without them");
        }
        Ok(Address(uri))
    }

    /// What a `Location` at this address leads to.
    pub(crate) fn join(&self, location: &str) -> Result<Address> {
        let location = location.split('#').next().unwrap_or_default();
        let Origin { secure, host, port } = self.origin();
        let scheme = if secure { "https" } else { "http" };
        if location.contains("://") {
            return Address::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Address::parse(&format!("{scheme}://{rest}"));
        }
        let root = format!("{scheme}://{host}:{port}");
        if location.starts_with('/') {
            return Address::parse(&(root + location));
        }
        let folder = &self.path()[..self.path().rfind('/').map_or(0, |at| at + 1)];
        Address::parse(&format!("{root}{folder}{location}"))
    }

    /// The address with more of a path, whose parts are percent-encoded.
    pub(crate) fn at<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> Address {
        let mut text = self.0.to_string().trim_end_matches('/').to_owned();
        for part in parts {
            text.push('/');
            text += &encoded(part);
        }
        Address::parse(&text).unwrap_or_else(|_| self.clone())
    }

    /// The address with a query, which is encoded already.
    pub(crate) fn with_query(&self, query: &str) -> Address {
        Address::parse(&format!("{}?{query}", self.0)).unwrap_or_else(|_| self.clone())
    }

    /// Who answers there. A secret for one is for no other.
    pub(crate) fn origin(&self) -> Origin {
        let secure = self.0.scheme_str() == Some("https");
        let host = self.0.host().unwrap_or_default().to_ascii_lowercase();
        Origin { secure, host, port: self.0.port_u16().unwrap_or(if secure { 443 } else { 80 }) }
    }

    /// The path, `/` at least.
    pub(crate) fn path(&self) -> &str {
        self.0.path()
    }

    pub(crate) fn uri(&self) -> &Uri {
        &self.0
    }
}

/// Without the query: signed addresses have their signature there.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.0.scheme_str().unwrap_or_default();
        let authority = self.0.authority().map_or("", |a| a.as_str());
        write!(f, "{scheme}://{authority}{}", self.0.path().trim_end_matches('/'))
    }
}

/// Scheme, host and port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub(crate) secure: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Origin {
    /// Whether it is this machine, whatever is on its network.
    pub(crate) fn is_local(&self) -> bool {
        let host = self.host.trim_matches(['[', ']']);
        let ip = host.parse::<std::net::IpAddr>();
        host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
    }
}

/// Percent-encodes everything but what RFC 3986 leaves unreserved.
pub(crate) fn encoded(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte.into()),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_they_say() {
        let at = Address::parse("https://h.example/a/b?q=1").unwrap();
        for (location, want) in [
            ("https://other.example/x?sig=2", "https://other.example/x?sig=2"),
            ("//other.example/x", "https://other.example/x"),
            ("/x/y", "https://h.example:443/x/y"),
            ("c", "https://h.example:443/a/c"),
            ("c#part", "https://h.example:443/a/c"),
        ] {
            assert_eq!(at.join(location).unwrap().uri().to_string(), want);
        }
        for bad in ["ftp://h/x", "file:///etc/passwd", "https://u:p@h/x", "http://"] {
            assert!(at.join(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn signatures_are_not_shown_and_parts_are_encoded() {
        let at = Address::parse("http://127.0.0.1:8080/").unwrap();
        assert!(at.origin().is_local());
        let file = at.at(["a b", "refs/pr/1", "ü"]).with_query("sig=secret");
        assert_eq!(file.to_string(), "http://127.0.0.1:8080/a%20b/refs%2Fpr%2F1/%C3%BC");
        assert!(!Address::parse("http://localhost.example").unwrap().origin().is_local());
    }
}
