//! JSON laid out as Python's `json.dumps` lays it out, because models were trained on that.

use std::io;

use minijinja::value::Value;
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, PrettyFormatter, Serializer};

/// `indent` as in Python: None is one line with ", " and ": ".
pub fn dumps(
    value: &Value,
    indent: Option<usize>,
    ensure_ascii: bool,
) -> serde_json::Result<String> {
    // An indent is a template's number: 64 is more than any uses, and bounds the output.
    let spaces = " ".repeat(indent.unwrap_or(0).min(64));
    let layout = Layout {
        pretty: indent.map(|_| PrettyFormatter::with_indent(spaces.as_bytes())),
        ensure_ascii,
    };
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, layout))?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

struct Layout<'a> {
    pretty: Option<PrettyFormatter<'a>>,
    ensure_ascii: bool,
}

/// Forwards to the pretty layout when there is one.
macro_rules! pretty_or {
    ($self:ident . $method:ident ( $writer:ident $(, $arg:expr)* ), $plain:expr) => {
        match $self.pretty.as_mut() {
            Some(pretty) => pretty.$method($writer $(, $arg)*),
            None => $plain,
        }
    };
}

impl Formatter for Layout<'_> {
    fn begin_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.begin_array(writer), writer.write_all(b"["))
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.end_array(writer), writer.write_all(b"]"))
    }

    fn begin_array_value<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        pretty_or!(
            self.begin_array_value(writer, first),
            separate(writer, first)
        )
    }

    fn end_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.end_array_value(writer), Ok(()))
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.begin_object(writer), writer.write_all(b"{"))
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.end_object(writer), writer.write_all(b"}"))
    }

    fn begin_object_key<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        pretty_or!(
            self.begin_object_key(writer, first),
            separate(writer, first)
        )
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        pretty_or!(self.end_object_value(writer), Ok(()))
    }

    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(text.as_bytes());
        }
        for c in text.chars() {
            // The chat layer's markers (noncharacters) are taken out of the output again, so they
            // must stay recognisable.
            if c.is_ascii() || ('\u{fdd0}'..='\u{fdef}').contains(&c) {
                write!(writer, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        serde_json::ser::CompactFormatter.write_char_escape(writer, escape)
    }
}

fn separate<W: ?Sized + io::Write>(writer: &mut W, first: bool) -> io::Result<()> {
    if first {
        Ok(())
    } else {
        writer.write_all(b", ")
    }
}
