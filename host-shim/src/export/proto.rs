//! Protocol-buffer encoding, as much as a trace needs: varints, fixed numbers, strings, nested messages.
//!
//! A [`Message`] appends to one reusable buffer. A nested message is written in place; its length is filled in when
//! it is complete, moving it by the few bytes that the length takes when it is longer than 127 bytes.

/// Field number of a message, as its schema gives it.
pub type Field = u32;

const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;

/// Most bytes of a varint.
const MAX_VARINT_BYTES: usize = 10;

/// A message being appended to a buffer.
#[derive(Debug)]
pub struct Message<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Message<'a> {
    /// Goes on behind what the buffer holds.
    pub fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// A field of type `uint32`, `uint64`, `bool` or enumeration.
    pub fn uint(&mut self, field: Field, value: u64) -> &mut Self {
        self.tag(field, VARINT);
        push_varint(self.bytes, value);
        self
    }

    /// A field of type `int32` or `int64`.
    pub fn int(&mut self, field: Field, value: i64) -> &mut Self {
        self.uint(field, value as u64)
    }

    /// A field of type `fixed64`.
    pub fn fixed64(&mut self, field: Field, value: u64) -> &mut Self {
        self.tag(field, FIXED64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// A field of type `string` or `bytes`.
    pub fn text(&mut self, field: Field, value: &str) -> &mut Self {
        self.tag(field, LENGTH_DELIMITED);
        push_varint(self.bytes, value.len() as u64);
        self.bytes.extend_from_slice(value.as_bytes());
        self
    }

    /// A nested message that `fill` writes.
    pub fn nested(&mut self, field: Field, fill: impl FnOnce(&mut Message<'_>)) -> &mut Self {
        self.tag(field, LENGTH_DELIMITED);
        let start = self.bytes.len();
        self.bytes.push(0);
        fill(&mut Message { bytes: self.bytes });
        let (length, length_bytes) = varint((self.bytes.len() - start - 1) as u64);
        self.bytes[start] = length[0];
        self.bytes.splice(start + 1..start + 1, length[1..length_bytes].iter().copied());
        self
    }

    fn tag(&mut self, field: Field, wire_type: u32) {
        push_varint(self.bytes, u64::from(field << 3 | wire_type));
    }
}

/// The varint of `value`, and how many of the bytes it takes.
fn varint(mut value: u64) -> ([u8; MAX_VARINT_BYTES], usize) {
    let (mut bytes, mut used) = ([0; MAX_VARINT_BYTES], 0);
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        bytes[used] = if value == 0 { low } else { low | 0x80 };
        used += 1;
        if value == 0 {
            return (bytes, used);
        }
    }
}

fn push_varint(bytes: &mut Vec<u8>, value: u64) {
    let (varint, used) = varint(value);
    bytes.extend_from_slice(&varint[..used]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(fill: impl FnOnce(&mut Message<'_>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        fill(&mut Message::new(&mut bytes));
        bytes
    }

    /// The examples of the encoding's public description.
    #[test]
    fn known_bytes() {
        assert_eq!(encoded(|m| _ = m.uint(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(encoded(|m| _ = m.text(2, "testing")), b"\x12\x07testing");
        assert_eq!(encoded(|m| _ = m.nested(3, |m| _ = m.uint(1, 150))), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(
            encoded(|m| _ = m.int(1, -2)),
            [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]
        );
        assert_eq!(encoded(|m| _ = m.uint(60, 0)), [0xe0, 0x03, 0x00]);
    }

    #[test]
    fn lengths_of_every_width_move_the_content() {
        for content in [0, 127, 128, 129, 16_383, 16_384, 16_390] {
            let text = "x".repeat(content);
            let nested = encoded(|m| _ = m.nested(1, |m| m.bytes.extend_from_slice(text.as_bytes())));
            assert_eq!(nested, encoded(|m| _ = m.text(1, &text)), "{content}");
        }
    }

    #[test]
    fn messages_nest_and_follow_one_another() {
        let inner = "y".repeat(200);
        let bytes = encoded(|m| {
            m.nested(1, |m| _ = m.nested(2, |m| _ = m.text(3, &inner)).uint(4, 5)).uint(6, 7);
        });
        let text = [&[0x1a, 0xc8, 0x01][..], inner.as_bytes()].concat();
        let middle = [&[0x12, 0xcb, 0x01][..], &text, &[0x20, 0x05]].concat();
        assert_eq!(bytes, [&[0x0a, 0xd0, 0x01][..], &middle, &[0x30, 0x07]].concat());
    }
}
