//! One chat template in an environment like the one Hugging Face renders it in.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, State};

use crate::python_json;

/// Name of the template inside its environment; no file extension, so nothing is auto-escaped.
const NAME: &str = "chat";

/// The largest template that is compiled. The largest that is seen in use is 17 KB.
const MAX_SOURCE_BYTES: usize = 64 * 1024;

/// The most binary operators in a template, counted anywhere in its text. The engine compiles a chain
/// of n of them in time n squared (0.3 s for 4,000); the most seen in use is about 1,000.
const MAX_OPERATORS: usize = 4000;

/// minijinja recurses over expressions and values without a bound of its own: `not not not ...`, a
/// list in a list in a list. So both compiling and rendering get a stack that the worst of them
/// cannot fill. It is address space; only what recursion touches becomes memory. Measured in a
/// release build: at most 0.8 KB of stack per byte of source (a chain of unary minus), and 60
/// bytes per unit of fuel (nested lists, printed as JSON).
const BASE_STACK_BYTES: usize = 16 << 20;
const STACK_PER_SOURCE_BYTE: usize = 2048;
const STACK_PER_FUEL: usize = 256;
/// Bounds the stack of a render; what is above is not granted.
const MAX_FUEL: u64 = 4_000_000;

/// What went wrong, as far as a caller acts on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    Syntax,
    Raised,
    Render,
    OutOfFuel,
    BadContext,
    TooLarge,
    NoStack,
}

/// An error with its message and the template line that it is about (0 if unknown).
#[derive(Debug)]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    pub line: u32,
}

impl Failure {
    pub fn new(kind: FailureKind, message: String) -> Self {
        Failure {
            kind,
            message,
            line: 0,
        }
    }

    fn of_render(error: &Error) -> Self {
        if let Some(message) = raised_message(error) {
            return Failure::new(FailureKind::Raised, message);
        }
        let kind = match error.kind() {
            ErrorKind::OutOfFuel => FailureKind::OutOfFuel,
            _ => FailureKind::Render,
        };
        Failure {
            kind,
            message: describe(error),
            line: line_of(error),
        }
    }
}

/// Marks an error that the template itself raised, so that it is told apart from a faulty template.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raised_message(error: &Error) -> Option<String> {
    let mut next: Option<&(dyn std::error::Error + 'static)> = error.source();
    while let Some(cause) = next {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return Some(raised.0.clone());
        }
        next = cause.source();
    }
    None
}

fn describe(error: &Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {}", error.kind(), detail),
        None => error.kind().to_string(),
    }
}

fn line_of(error: &Error) -> u32 {
    error
        .line()
        .and_then(|line| u32::try_from(line).ok())
        .unwrap_or(0)
}

/// A compiled template. `render` may be called from several threads at a time.
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    pub fn new(source: &str) -> Result<Self, Failure> {
        if source.len() > MAX_SOURCE_BYTES {
            let message = format!("{} bytes, the limit is {MAX_SOURCE_BYTES}", source.len());
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        let operators = count_operators(source);
        if operators > MAX_OPERATORS {
            let message = format!("{operators} operators, the limit is {MAX_OPERATORS}");
            return Err(Failure::new(FailureKind::TooLarge, message));
        }
        let stack_bytes = BASE_STACK_BYTES + STACK_PER_SOURCE_BYTE * source.len();
        on_own_stack(stack_bytes, || Self::compile(source))
    }

    fn compile(source: &str) -> Result<Self, Failure> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|e| Failure::of_render(&e))?);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise_exception);
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment.add_test("iterable", is_iterable);
        environment
            .add_template_owned(NAME, without_generation_tags(source))
            .map_err(|error| Failure {
                kind: FailureKind::Syntax,
                message: describe(&error),
                line: line_of(&error),
            })?;
        Ok(ChatTemplate { environment })
    }

    pub fn render(&self, context: &str, fuel: u64) -> Result<String, Failure> {
        let fuel = fuel.min(MAX_FUEL);
        let stack_bytes = BASE_STACK_BYTES + STACK_PER_FUEL * fuel as usize;
        on_own_stack(stack_bytes, || self.render_here(context, fuel))
    }

    fn render_here(&self, context: &str, fuel: u64) -> Result<String, Failure> {
        let context: Value = serde_json::from_str(context)
            .map_err(|e| Failure::new(FailureKind::BadContext, format!("the context: {e}")))?;
        // Fuel belongs to an environment; a clone shares the compiled template.
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let template = environment
            .get_template(NAME)
            .map_err(|e| Failure::of_render(&e))?;
        template.render(context).map_err(|e| Failure::of_render(&e))
    }
}

/// Runs `work` on a thread of its own with a stack of that size. A panic of `work` goes on here.
fn on_own_stack<T: Send>(
    stack_bytes: usize,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("tael-template".to_owned())
            .stack_size(stack_bytes)
            .spawn_scoped(scope, work)
            .map_err(|e| {
                let message = format!("no stack of {stack_bytes} bytes for the template: {e}");
                Failure::new(FailureKind::NoStack, message)
            })?;
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
}

/// `tojson` as Python's `json.dumps(value, ensure_ascii=False)` writes it.
fn to_json(state: &State, value: &Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    // Accepted because Hugging Face's filter takes them; the defaults are what templates ask for.
    let _: Option<Value> = kwargs.get("separators")?;
    let _: Option<Value> = kwargs.get("sort_keys")?;
    kwargs.assert_all_used()?;
    let text = python_json::dumps(value, indent, ensure_ascii.unwrap_or(false))
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    state.consume_fuel((text.len() / 64) as u64)?;
    Ok(Value::from_safe_string(text))
}

/// As in Python, where None cannot be iterated; templates ask `tools is iterable`.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// The local time in the C library's `strftime` format; "" when it is longer than 4 KiB.
fn strftime_now(format: String) -> Result<String, Error> {
    let format = std::ffi::CString::new(format).map_err(|_| {
        Error::new(
            ErrorKind::InvalidOperation,
            "a time format holds a NUL byte",
        )
    })?;
    let mut buffer = [0u8; 4096];
    // SAFETY: every pointer is to a live local; strftime writes at most the size it is given.
    let length = unsafe {
        let now = libc::time(std::ptr::null_mut());
        let mut parts: libc::tm = std::mem::zeroed();
        if libc::localtime_r(&now, &mut parts).is_null() {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                "the clock has no local time",
            ));
        }
        libc::strftime(
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            format.as_ptr(),
            &parts,
        )
    };
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

/// An upper bound: plain text and strings count as well, the signs of tags ("{%-") do not.
fn count_operators(source: &str) -> usize {
    let bytes = source.as_bytes();
    let at = |i: usize| bytes.get(i).copied().unwrap_or(b' ');
    let signs = (0..bytes.len()).filter(|&i| {
        let before = if i == 0 { b' ' } else { at(i - 1) };
        match bytes[i] {
            b'+' | b'~' | b'*' | b'/' => true,
            b'%' => before != b'{' && at(i + 1) != b'}',
            b'-' => {
                !matches!(before, b'{' | b'%' | b'#') && !matches!(at(i + 1), b'}' | b'%' | b'#')
            }
            _ => false,
        }
    });
    let words = source.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    signs.count() + words.filter(|word| matches!(*word, "and" | "or")).count()
}

/// Hugging Face's `{% generation %}` marks what to train on and prints nothing of its own; a block
/// that is always taken renders the same and keeps line numbers.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = match tag.find("%}") {
            Some(end) => end + 2,
            None => break,
        };
        let word =
            tag[2..end - 2].trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace());
        match word {
            "generation" => out.push_str(&tag[..end].replacen(word, "if true", 1)),
            "endgeneration" => out.push_str(&tag[..end].replacen(word, "endif", 1)),
            _ => out.push_str(&tag[..end]),
        }
        rest = &tag[end..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(source: &str, context: &str) -> String {
        ChatTemplate::new(source)
            .unwrap()
            .render(context, 100_000)
            .unwrap()
    }

    #[test]
    fn blocks_are_trimmed_as_hugging_face_does() {
        assert_eq!(
            render("a\n  {% if true %}\nb\n  {% endif %}\nc", "{}"),
            "a\nb\nc"
        );
    }

    #[test]
    fn tojson_writes_what_python_writes() {
        let context = r#"{"x": {"b": "<a>é", "a": [1, 2.5, null, true], "e": []}}"#;
        assert_eq!(
            render("{{ x|tojson }}", context),
            r#"{"b": "<a>é", "a": [1, 2.5, null, true], "e": []}"#
        );
        assert_eq!(
            render("{{ [1,2]|tojson(indent=2) }}", "{}"),
            "[\n  1,\n  2\n]"
        );
        assert_eq!(
            render("{{ 'é'|tojson(ensure_ascii=true) }}", "{}"),
            r#""\u00e9""#
        );
    }

    #[test]
    fn a_raised_message_comes_back_as_it_is() {
        let template = ChatTemplate::new("{{ raise_exception('no system role') }}").unwrap();
        let failure = template.render("{}", 1000).unwrap_err();
        assert_eq!(failure.kind, FailureKind::Raised);
        assert_eq!(failure.message, "no system role");
    }

    #[test]
    fn an_endless_template_runs_out_of_fuel() {
        let source =
            "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        let failure = ChatTemplate::new(source)
            .unwrap()
            .render("{}", 10_000)
            .unwrap_err();
        assert_eq!(failure.kind, FailureKind::OutOfFuel);
    }

    #[test]
    fn generation_tags_render_what_they_hold() {
        assert_eq!(
            render(
                "a {%- generation -%} b {%- endgeneration %} {% if true %}c{% endif %}",
                "{}"
            ),
            "ab c"
        );
        assert_eq!(render("{# {% #}x", "{}"), "x");
    }

    #[test]
    fn a_chain_that_would_take_long_to_compile_is_refused() {
        for unit in ["x+", "x - ", "x and ", "x%x*"] {
            let source = format!("{{{{ {}1 }}}}", unit.repeat(MAX_OPERATORS + 1));
            let failure = ChatTemplate::new(&source).err().unwrap();
            assert_eq!(failure.kind, FailureKind::TooLarge);
        }
        assert_eq!(
            count_operators("{%- if x -%}{{- a + b -}}{#- c -#}{% band or d %}"),
            2
        );
    }

    #[test]
    fn none_is_not_iterable() {
        let source =
            "{{ x is iterable }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }}";
        assert_eq!(render(source, r#"{"x": null}"#), "False True True False");
    }

    #[test]
    fn no_other_template_can_be_loaded() {
        let template = ChatTemplate::new("{% include '/etc/passwd' %}").unwrap();
        assert_eq!(
            template.render("{}", 1000).unwrap_err().kind,
            FailureKind::Render
        );
    }
}
