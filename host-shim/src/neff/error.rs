//! One error for everything that can be wrong with a container.
//!
//! Its text is always one line and always has the same shape, with the parts that apply:
//!
//! ```text
//! model.neff: sg00/def.json: var.x.alignment: 3 is not a power of two
//! ^ file      ^ member       ^ key            ^ value and rule
//! ```

use std::fmt::{self, Display, Write as _};

use sluice_core::exec::NrtStatus;

/// What is wrong, without the place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NeffFault {
    /// The operating system refused.
    #[error("{0}")]
    Io(String),
    /// Neither a plain (1) nor a compressed (2) package.
    #[error("package version {0}, supported are 1 and 2{hint}", hint = hint(*.0))]
    PackageVersion(u64),
    /// Newer than the newest format known here.
    #[error("format {major}.{minor}, supported are major versions up to 2")]
    FormatVersion {
        /// Major version found.
        major: u64,
        /// Minor version found.
        minor: u64,
    },
    /// Asks for features that are not known here.
    #[error("feature {} set, supported mask {supported:#018x}", Bits(*.unknown))]
    Features {
        /// The bits set that are not supported.
        unknown: u64,
        /// All bits that may be set.
        supported: u64,
    },
    /// The host has no memory for it, although it is within the limits.
    #[error("no memory for {bytes} bytes")]
    HostMemory {
        /// Bytes asked for.
        bytes: u64,
    },
    /// A value breaks a rule; the text has both.
    #[error("{0}")]
    Invalid(String),
}

/// What a file is whose first bytes are text.
fn hint(package: u64) -> &'static str {
    let is_text = |byte: u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    match package.to_le_bytes().into_iter().all(is_text) {
        true => "; is that the text of a model? `sluice pack` makes a container of it",
        false => "",
    }
}

/// A container that cannot be used: where, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeffError {
    file: String,
    member: Option<String>,
    key: Option<String>,
    fault: NeffFault,
}

impl NeffError {
    /// What is wrong.
    pub fn fault(&self) -> &NeffFault {
        &self.fault
    }

    /// The status that the C interface reports for it (KBL facts, errors by function).
    pub fn status(&self) -> NrtStatus {
        match self.fault {
            NeffFault::Io(_) => NrtStatus::FAILURE,
            NeffFault::HostMemory { .. } => NrtStatus::FAIL_HOST_MEM_ALLOC,
            NeffFault::PackageVersion(_) | NeffFault::FormatVersion { .. } | NeffFault::Features { .. } => {
                NrtStatus::UNSUPPORTED_NEFF_VERSION
            }
            NeffFault::Invalid(_) => NrtStatus::INVALID,
        }
    }

    /// The member of the archive it is about; `None` for the file as a whole.
    pub fn member(&self) -> Option<&str> {
        self.member.as_deref()
    }

    /// The key inside that member, or the field of the header.
    pub fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }
}

impl Display for NeffError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", Bare(&self.file))?;
        for part in [&self.member, &self.key].into_iter().flatten() {
            write!(f, "{}: ", Bare(part))?;
        }
        write!(f, "{}", self.fault)
    }
}

impl std::error::Error for NeffError {}

/// A file, or a member of it: where an error is put together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    file: &'a str,
    member: Option<&'a str>,
}

impl<'a> Place<'a> {
    pub(super) fn file(file: &'a str) -> Self {
        Self { file, member: None }
    }

    pub(super) fn member(self, member: &'a str) -> Self {
        Self { member: Some(member), ..self }
    }

    pub(super) fn fault(&self, key: Option<String>, fault: NeffFault) -> NeffError {
        NeffError { file: self.file.into(), member: self.member.map(Into::into), key, fault }
    }

    /// The value of `key` breaks a rule.
    pub(super) fn invalid_key(&self, key: impl Into<String>, text: impl Display) -> NeffError {
        self.fault(Some(key.into()), NeffFault::Invalid(text.to_string()))
    }

    /// The file or member as a whole breaks a rule.
    pub(super) fn invalid(&self, text: impl Display) -> NeffError {
        self.fault(None, NeffFault::Invalid(text.to_string()))
    }
}

/// Longest piece of foreign text that an error repeats, in characters.
const SHOWN_CHARS: usize = 80;

/// Foreign text inside an error: escaped, so that it stays on its line, and cut.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare<'a>(pub(crate) &'a str);

impl Display for Bare<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.char_indices().nth(SHOWN_CHARS).map(|(end, _)| end);
        for c in self.0[..cut.unwrap_or(self.0.len())].chars() {
            if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}') {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                f.write_char(c)?;
            }
        }
        if cut.is_some() { write!(f, "… ({} bytes)", self.0.len()) } else { Ok(()) }
    }
}

/// The same in quotation marks, for values.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`", Bare(self.0))
    }
}

/// "bit 27" or "bits 27, 62".
struct Bits(u64);

impl Display for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.count_ones() == 1 { "bit" } else { "bits" })?;
        let mut separator = " ";
        for bit in (0..u64::BITS).filter(|bit| self.0 >> bit & 1 == 1) {
            write!(f, "{separator}{bit}")?;
            separator = ", ";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_names_the_parts_that_apply() {
        let file = Place::file("a.neff");
        assert_eq!(file.invalid("empty").to_string(), "a.neff: empty");
        let member = file.member("sg00/def.json");
        assert_eq!(
            member.invalid_key("var.x", "7 is odd").to_string(),
            "a.neff: sg00/def.json: var.x: 7 is odd"
        );
    }

    #[test]
    fn foreign_text_stays_on_one_line_and_short() {
        let error = Place::file("a\nb").member(&"m".repeat(5000)).invalid(Quoted("x\r\n\u{202e}\u{2028}y"));
        let text = error.to_string();
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{2028}'), "{text}");
        assert!(text.contains("… (5000 bytes)") && text.len() < 300, "{text}");
    }

    #[test]
    fn features_are_listed_by_bit() {
        let text = |unknown| NeffFault::Features { unknown, supported: 0x8000_0000_07FF_FFFF }.to_string();
        assert_eq!(text(1 << 27), "feature bit 27 set, supported mask 0x8000000007ffffff");
        assert_eq!(text(1 << 27 | 1 << 62), "feature bits 27, 62 set, supported mask 0x8000000007ffffff");
    }
}
