//! JSON from a container: bounded, duplicate keys refused, every value with the path that leads to it.
//!
//! [`Json::parse`] builds a tree whose strings borrow from the member where they can. [`Node`] walks the tree and
//! remembers the way, so that an error can say `dma_queue.q_in.semaphore_set[3]`.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::fmt::{self, Display, Write as _};

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::error::{NeffError, Place, Quoted};
use sluice_core::dma::TemplateAddr;

/// Most entries of one object or list: nothing is more numerous than variables, which are numbered in 19 bits.
const MAX_ENTRIES: usize = TemplateAddr::MAX_VAR.0 as usize + 1;

/// How much JSON is accepted: per member, and values in all members together.
#[derive(Clone, Debug)]
pub(super) struct JsonBudget {
    max_bytes: u64,
    max_depth: usize,
    max_values: usize,
    values_left: Cell<usize>,
}

impl JsonBudget {
    pub(super) fn new(max_bytes: u64, max_depth: usize, max_values: usize) -> Self {
        Self { max_bytes, max_depth, max_values, values_left: Cell::new(max_values) }
    }
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Unsigned(u64),
    /// A number that is not an unsigned 64-bit integer.
    OtherNumber(f64),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    /// Sorted by key.
    Object(Vec<(Cow<'a, str>, Json<'a>)>),
}

impl<'a> Json<'a> {
    /// Parses one member completely.
    pub(super) fn parse(place: Place<'_>, bytes: &'a [u8], budget: &JsonBudget) -> Result<Self, NeffError> {
        if bytes.len() as u64 > budget.max_bytes {
            return Err(place.invalid(format_args!(
                "{} bytes of JSON, the limit is {}",
                bytes.len(),
                budget.max_bytes
            )));
        }
        let (text, not_utf8) = match std::str::from_utf8(bytes) {
            Ok(text) => (text, None),
            // What comes before the bad byte tells which key it belongs to.
            Err(error) => {
                let text = std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default();
                (text, Some(error.valid_up_to()))
            }
        };
        let parser = Parser { budget, path: RefCell::new(Vec::new()), broken_rule: RefCell::new(None) };
        let mut deserializer = serde_json::Deserializer::from_str(text);
        let parsed = (&parser).deserialize(&mut deserializer).and_then(|json| {
            deserializer.end()?;
            Ok(json)
        });
        let at = |path: String, rule: String| match path.is_empty() {
            true => place.invalid(rule),
            false => place.invalid_key(path, rule),
        };
        if let Some(byte) = not_utf8 {
            return Err(at(parser.path(), format!("not UTF-8 at byte {byte}: {:#04x}", bytes[byte])));
        }
        parsed.map_err(|error| match parser.broken_rule.take() {
            Some((path, rule)) => at(path, rule),
            None => at(parser.path(), syntax(text, &error)),
        })
    }

    fn describe(&self) -> String {
        match self {
            Self::Null => "null".into(),
            Self::Bool(value) => value.to_string(),
            Self::Unsigned(value) => value.to_string(),
            // Digits as they are written, but not three hundred of them.
            Self::OtherNumber(value) if (-1e16..0.0).contains(value) => value.to_string(),
            // With a point, that 0.0 does not look like the number that it is not.
            Self::OtherNumber(value) => format!("{value:?}"),
            Self::Text(text) => Quoted(text).to_string(),
            Self::List(items) => format!("a list of {}", items.len()),
            Self::Object(entries) => format!("an object of {}", entries.len()),
        }
    }
}

/// What is wrong with `text`, with the part of it that `error` points at.
fn syntax(text: &str, error: &serde_json::Error) -> String {
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    // The column counts bytes from 1 and may point behind the last of them.
    let rest = line.as_bytes().get(error.column().saturating_sub(1)..).unwrap_or_default();
    if rest.is_empty() || error.is_eof() {
        return error.to_string();
    }
    let found: String = String::from_utf8_lossy(rest).chars().take(SHOWN_SYNTAX_CHARS).collect();
    format!("{error}, found {}", Quoted(&found))
}

/// Enough of a broken text to recognize it.
const SHOWN_SYNTAX_CHARS: usize = 16;

/// One way further into a value.
#[derive(Clone, Copy, Debug)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl Step<'_> {
    fn append_to(self, path: &mut String) {
        match self {
            Self::Root => {}
            Self::Key(key) if path.is_empty() => path.push_str(key),
            // Writing to a string cannot fail.
            Self::Key(key) => drop(write!(path, ".{key}")),
            Self::Index(index) => drop(write!(path, "[{index}]")),
        }
    }
}

/// Builds the tree while it counts.
struct Parser<'a, 'b> {
    budget: &'b JsonBudget,
    path: RefCell<Vec<(Cow<'a, str>, Option<usize>)>>,
    broken_rule: RefCell<Option<(String, String)>>,
}

impl Parser<'_, '_> {
    /// The way to the value that is being read.
    fn path(&self) -> String {
        let mut path = String::new();
        for (key, index) in self.path.borrow().iter() {
            index.map_or(Step::Key(key), Step::Index).append_to(&mut path);
        }
        path
    }

    fn refuse<E: serde::de::Error>(&self, rule: impl Display) -> E {
        *self.broken_rule.borrow_mut() = Some((self.path(), rule.to_string()));
        E::custom("rule broken")
    }

    fn count_entry<E: serde::de::Error>(&self, entries: usize) -> Result<(), E> {
        if entries == MAX_ENTRIES {
            return Err(self.refuse(format_args!("more than {MAX_ENTRIES} entries")));
        }
        Ok(())
    }

    fn enter<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.path.borrow().len() >= self.budget.max_depth {
            return Err(self.refuse(format_args!("nested deeper than {}", self.budget.max_depth)));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for &Parser<'de, '_> {
    type Value = Json<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json<'de>, D::Error> {
        match self.budget.values_left.get().checked_sub(1) {
            Some(left) => self.budget.values_left.set(left),
            None => {
                return Err(self.refuse(format_args!(
                    "more than {} values in the JSON of the container, the limit",
                    self.budget.max_values
                )));
            }
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &Parser<'de, '_> {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json<'de>, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json<'de>, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json<'de>, E> {
        Ok(Json::Unsigned(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json<'de>, E> {
        Ok(u64::try_from(value).map_or(Json::OtherNumber(value as f64), Json::Unsigned))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json<'de>, E> {
        Ok(Json::OtherNumber(value))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json<'de>, E> {
        Ok(Json::Text(Cow::Owned(text.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Json<'de>, A::Error> {
        self.enter()?;
        let mut items = Vec::new();
        self.path.borrow_mut().push((Cow::Borrowed(""), Some(0)));
        while let Some(item) = list.next_element_seed(self)? {
            self.count_entry(items.len())?;
            items.push(item);
            if let Some(last) = self.path.borrow_mut().last_mut() {
                last.1 = Some(items.len());
            }
        }
        self.path.borrow_mut().pop();
        items.shrink_to_fit();
        Ok(Json::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Json<'de>, A::Error> {
        self.enter()?;
        let mut entries: Vec<(Cow<'de, str>, Json<'de>)> = Vec::new();
        while let Some(key) = object.next_key_seed(Key)? {
            self.count_entry(entries.len())?;
            self.path.borrow_mut().push((key.clone(), None));
            let value = object.next_value_seed(self)?;
            self.path.borrow_mut().pop();
            entries.push((key, value));
        }
        entries.shrink_to_fit();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        if let Some(twice) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(self.refuse(format_args!("key {} appears twice", Quoted(&twice[0].0))));
        }
        Ok(Json::Object(entries))
    }
}

/// An object key, borrowed where it has no escapes.
struct Key;

impl<'de> DeserializeSeed<'de> for Key {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Cow<'de, str>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for Key {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
        Ok(Cow::Owned(text.into()))
    }
}

/// Longest name; the tables of the runtime have 256 bytes with the end mark.
const MAX_NAME_BYTES: usize = 255;

/// The rule that a name breaks, if it does.
fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("is empty".into());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!("has {} bytes, at most {MAX_NAME_BYTES}", name.len()));
    }
    // A NUL would end the name early in the tables of the runtime, a line break would break every report.
    if name.chars().any(char::is_control) {
        return Err("has a control character".into());
    }
    Ok(())
}

/// A value of a parsed member, and how to get there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Node<'p, 'a> {
    place: Place<'p>,
    parent: Option<&'p Node<'p, 'a>>,
    step: Step<'p>,
    json: &'a Json<'a>,
}

impl<'p, 'a> Node<'p, 'a> {
    pub(super) fn root(place: Place<'p>, json: &'a Json<'a>) -> Self {
        Self { place, parent: None, step: Step::Root, json }
    }

    fn child<'c>(&'c self, step: Step<'c>, json: &'a Json<'a>) -> Node<'c, 'a> {
        Node { place: self.place, parent: Some(self), step, json }
    }

    fn path(&self) -> String {
        let mut path = self.parent.map(Node::path).unwrap_or_default();
        self.step.append_to(&mut path);
        path
    }

    /// This value breaks a rule.
    pub(super) fn invalid(&self, text: impl Display) -> NeffError {
        match self.path() {
            path if path.is_empty() => self.place.invalid(text),
            path => self.place.invalid_key(path, text),
        }
    }

    fn expected(&self, what: &str) -> NeffError {
        self.invalid(format_args!("{}, expected {what}", self.json.describe()))
    }

    fn entries(&self) -> Result<&'a [(Cow<'a, str>, Json<'a>)], NeffError> {
        match self.json {
            Json::Object(entries) => Ok(entries),
            _ => Err(self.expected("an object")),
        }
    }

    /// The entry of an object, where there is one; null counts as absent.
    pub(super) fn get<'c>(&'c self, key: &'c str) -> Result<Option<Node<'c, 'a>>, NeffError> {
        let entries = self.entries()?;
        let found = entries.binary_search_by(|(name, _)| name.as_ref().cmp(key));
        Ok(found
            .ok()
            .map(|at| self.child(Step::Key(key), &entries[at].1))
            .filter(|node| *node.json != Json::Null))
    }

    /// The entry of an object, which has to be there.
    pub(super) fn need<'c>(&'c self, key: &'c str) -> Result<Node<'c, 'a>, NeffError> {
        self.get(key)?.ok_or_else(|| self.invalid(format_args!("missing key {}", Quoted(key))))
    }

    /// All entries of an object, sorted by key.
    pub(super) fn object<'c>(
        &'c self,
    ) -> Result<impl ExactSizeIterator<Item = (&'a str, Node<'c, 'a>)>, NeffError> {
        let entries = self.entries()?;
        Ok(entries.iter().map(|(key, json)| (key.as_ref(), self.child(Step::Key(key), json))))
    }

    /// All items of a list.
    pub(super) fn list<'c>(&'c self) -> Result<impl ExactSizeIterator<Item = Node<'c, 'a>>, NeffError> {
        match self.json {
            Json::List(items) => {
                Ok(items.iter().enumerate().map(|(index, json)| self.child(Step::Index(index), json)))
            }
            _ => Err(self.expected("a list")),
        }
    }

    /// The value itself.
    pub(super) fn json(&self) -> &'a Json<'a> {
        self.json
    }

    pub(super) fn text(&self) -> Result<&'a str, NeffError> {
        match self.json {
            Json::Text(text) => Ok(text),
            _ => Err(self.expected("a string")),
        }
    }

    /// A string that names something.
    pub(super) fn name(&self) -> Result<&'a str, NeffError> {
        let name = self.text()?;
        check_name(name).map_err(|rule| self.invalid(format_args!("name {} {rule}", Quoted(name))))?;
        Ok(name)
    }

    /// Makes sure that the key of this entry can name something.
    pub(super) fn check_key(&self) -> Result<(), NeffError> {
        let Step::Key(key) = self.step else { return Ok(()) };
        check_name(key).map_err(|rule| self.invalid(format_args!("name {} {rule}", Quoted(key))))
    }

    pub(super) fn u64(&self) -> Result<u64, NeffError> {
        match self.json {
            Json::Unsigned(value) => Ok(*value),
            _ => Err(self.expected("an unsigned 64-bit number")),
        }
    }

    /// A number no larger than `max`.
    pub(super) fn at_most(&self, max: u64) -> Result<u64, NeffError> {
        let value = self.u64()?;
        if value > max {
            return Err(self.invalid(format_args!("{value} is more than {max}")));
        }
        Ok(value)
    }

    /// A list of unsigned numbers.
    pub(super) fn numbers(&self) -> Result<Vec<u64>, NeffError> {
        self.list()?.map(|item| item.u64()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget() -> JsonBudget {
        JsonBudget::new(64 << 20, 8, 4 << 20)
    }

    fn parse(text: &str) -> Result<Json<'_>, String> {
        Json::parse(Place::file("f").member("m"), text.as_bytes(), &budget()).map_err(|e| e.to_string())
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err()
    }

    #[test]
    fn duplicate_keys_are_refused_where_they_stand() {
        assert_eq!(error(r#"{"a":{"b":[{"x":1,"y":2,"x":1}]}}"#), "f: m: a.b[0]: key `x` appears twice");
        assert_eq!(error(r#"{"a":1,"\u0061":2}"#), "f: m: key `a` appears twice");
    }

    #[test]
    fn depth_is_bounded() {
        assert!(parse(&format!("{}{}", "[".repeat(8), "]".repeat(8))).is_ok());
        assert_eq!(error(&"[".repeat(100_000)), "f: m: [0][0][0][0][0][0][0][0]: nested deeper than 8");
        assert!(error(&r#"{"a":"#.repeat(100_000)).ends_with("nested deeper than 8"));
    }

    #[test]
    fn size_and_number_of_values_are_bounded() {
        let budget = JsonBudget::new(11, 8, 6);
        let next = |text: &str| {
            Json::parse(Place::file("f"), text.as_bytes(), &budget).map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(next("[10, 200, 3]"), Err("f: 12 bytes of JSON, the limit is 11".into()));
        assert_eq!(next("[10, 20]"), Ok(()));
        let too_many = "more than 6 values in the JSON of the container, the limit";
        assert_eq!(next("[[1, 2, 3]]"), Err(format!("f: [0][1]: {too_many}")), "three were used up before");
    }

    #[test]
    fn more_entries_than_variables_can_be_are_refused_early() {
        let many = format!("{{\"var\":[{}0]}}", "0,".repeat(MAX_ENTRIES));
        assert_eq!(error(&many), format!("f: m: var[{MAX_ENTRIES}]: more than {MAX_ENTRIES} entries"));
    }

    #[test]
    fn broken_text_is_one_line() {
        for text in ["", "{", "{\"a\"", "[1,]", "[1] 2", "\"\u{1}\"", "nul", "1e999", "{\"a\":1,}"] {
            let error = error(text);
            assert!(error.starts_with("f: m: ") && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn broken_text_is_named_with_its_key() {
        for (text, want) in [
            (r#"{"a":{"b":[1,NaN]}}"#, "a.b[1]: expected value at line 1 column 14, found `NaN]}}`"),
            ("{\"a\":\n[1 2]}", "a[1]: expected `,` or `]` at line 2 column 4, found `2]}`"),
            (r#"{"a":{"b" 1}}"#, "a.b: expected `:` at line 1 column 11, found `1}}`"),
            (r#"{"a":{"b":[1"#, "a.b[1]: EOF while parsing a list at line 1 column 12"),
            (r#"{"a":1} 2"#, "trailing characters at line 1 column 9, found `2`"),
        ] {
            assert_eq!(error(text), format!("f: m: {want}"));
        }
        let not_utf8 = Json::parse(Place::file("f"), b"{\"a\":[\"b\xff\"]}", &budget()).unwrap_err();
        assert_eq!(not_utf8.to_string(), "f: a[0]: not UTF-8 at byte 8: 0xff");
    }

    #[test]
    fn nodes_name_key_and_value() {
        let json = parse(r#"{"q":{"n":[1,-2,3.5]},"s":"t","z":null,"big":18446744073709551616}"#).unwrap();
        let root = Node::root(Place::file("f").member("m"), &json);
        let q = root.need("q").unwrap();
        let n = q.need("n").unwrap();
        let text = |e: NeffError| e.to_string();
        assert_eq!(
            n.numbers().map_err(text),
            Err("f: m: q.n[1]: -2, expected an unsigned 64-bit number".into())
        );
        assert_eq!(n.text().map_err(text), Err("f: m: q.n: a list of 3, expected a string".into()));
        assert_eq!(
            root.need("s").unwrap().u64().map_err(text),
            Err("f: m: s: `t`, expected an unsigned 64-bit number".into())
        );
        assert!(root.need("big").unwrap().u64().is_err());
        assert_eq!(root.need("z").map(|_| ()).map_err(text), Err("f: m: missing key `z`".into()));
        assert_eq!(q.need("m").map(|_| ()).map_err(text), Err("f: m: q: missing key `m`".into()));
        assert_eq!(
            n.list().unwrap().next().unwrap().at_most(0).map_err(text),
            Err("f: m: q.n[0]: 1 is more than 0".into())
        );
    }
}
