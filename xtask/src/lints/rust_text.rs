//! Rust source with everything blanked that is not code.
//!
//! Comments, strings and characters become blanks; line ends stay, so that line numbers do too.

/// The code of `source`, with comments and literals blanked.
pub(super) fn code(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let length = skipped(rest, out.chars().next_back());
        let taken = if length == 0 {
            out.push(first);
            first.len_utf8()
        } else {
            out.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
            length
        };
        rest = &rest[taken..];
    }
    out
}

/// How many bytes at the start of `text` are a comment or a literal; 0 when it is code.
fn skipped(text: &str, before: Option<char>) -> usize {
    let in_word = before.is_some_and(|c| c.is_alphanumeric() || c == '_');
    if text.starts_with("//") {
        text.find('\n').unwrap_or(text.len())
    } else if text.starts_with("/*") {
        block_comment(text)
    } else if text.starts_with('"') {
        quoted(text, '"')
    } else if text.starts_with('\'') {
        character(text)
    } else if in_word {
        0
    } else {
        raw_string(text)
    }
}

/// Block comments nest.
fn block_comment(text: &str) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// A literal between two of `quote`, with escapes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// A character literal; 0 for the tick of a lifetime or label.
fn character(text: &str) -> usize {
    let mut chars = text.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(text, '\''),
        _ => 0,
    }
}

/// `r"…"`, `r#"…"#` and their byte and C kin.
fn raw_string(text: &str) -> usize {
    let after_kind = text.strip_prefix(['b', 'c']).unwrap_or(text);
    let Some(after_r) = after_kind.strip_prefix('r') else { return 0 };
    let hashes = after_r.len() - after_r.trim_start_matches('#').len();
    let Some(body) = after_r[hashes..].strip_prefix('"') else { return 0 };
    let end = format!("\"{}", "#".repeat(hashes));
    body.find(&end).map_or(text.len(), |at| text.len() - body.len() + at + end.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `source` that are code, and that nothing moved.
    fn words(source: &str) -> Vec<String> {
        let code = code(source);
        assert_eq!(code.chars().count(), source.chars().count(), "{source}");
        assert_eq!(code.matches('\n').count(), source.matches('\n').count(), "{source}");
        code.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn comments_and_literals_are_blank_and_lines_stay() {
        assert_eq!(words("a // b\n/* c /* d */ \n é */ f"), ["a", "f"]);
        assert_eq!(words("a \"b \\\" c\" d 'e' 'f: '\\'' g"), ["a", "d", "'f:", "g"]);
        assert_eq!(words("&'a str, &'b str"), ["&'a", "str,", "&'b", "str"]);
    }

    #[test]
    fn raw_strings_end_at_their_own_mark() {
        assert_eq!(words(r####"x r#"a " b"# y br"c" for r#type"####), ["x", "y", "for", "r#type"]);
    }

    #[test]
    fn what_never_ends_is_blank_to_the_end() {
        for source in ["\"a", "/* a /* b */", "r#\"a\""] {
            assert_eq!(code(source).trim(), "", "{source}");
        }
    }
}
