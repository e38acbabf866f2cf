//! minijinja behind a small C ABI (`include/tael_jinja.h`), set up the way Hugging Face's
//! `apply_chat_template` sets up Jinja2: block trimming, loop controls, `raise_exception`,
//! `strftime_now`, a `tojson` that does not escape HTML, and Python's string and dict methods.
//!
//! This crate knows templates and JSON, not chats: what goes into the context is the caller's affair.
//! It refuses to load other templates (`include`, `import`), so a template reads no file.

mod environment;
mod python_json;

use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

pub use environment::{ChatTemplate, Failure, FailureKind};

/// Text handed to C: the parts of a `Vec<u8>`.
#[repr(C)]
pub struct Text {
    data: *mut u8,
    size: usize,
    capacity: usize,
    line: u32,
}

impl Text {
    fn give(&mut self, text: String, line: u32) {
        let mut bytes = std::mem::ManuallyDrop::new(text.into_bytes());
        self.data = bytes.as_mut_ptr();
        self.size = bytes.len();
        self.capacity = bytes.capacity();
        self.line = line;
    }
}

// The codes of tael_jinja.h.
const OK: i32 = 0;
const BAD_CONTEXT: i32 = 5;
const INTERNAL: i32 = 6;

fn code_of(kind: FailureKind) -> i32 {
    match kind {
        FailureKind::Syntax => 1,
        FailureKind::Raised => 2,
        FailureKind::Render => 3,
        FailureKind::OutOfFuel => 4,
        FailureKind::BadContext => BAD_CONTEXT,
        FailureKind::NoStack => INTERNAL,
        FailureKind::TooLarge => 7,
    }
}

/// Runs `body`; a panic becomes INTERNAL, a failure its code and its message in `text`.
///
/// # Safety
/// `text` points to a writable `Text`.
unsafe fn guarded(text: *mut Text, body: impl FnOnce() -> Result<String, Failure>) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let text = &mut *text;
    match outcome {
        Ok(Ok(output)) => {
            text.give(output, 0);
            OK
        }
        Ok(Err(failure)) => {
            let code = code_of(failure.kind);
            text.give(failure.message, failure.line);
            code
        }
        Err(_) => {
            text.give("the template engine panicked".to_owned(), 0);
            INTERNAL
        }
    }
}

/// # Safety
/// `data` points to `size` readable bytes, or `size` is 0.
unsafe fn text_of<'a>(data: *const u8, size: usize, what: &str) -> Result<&'a str, Failure> {
    let bytes = if size == 0 {
        &[]
    } else {
        slice::from_raw_parts(data, size)
    };
    std::str::from_utf8(bytes)
        .map_err(|_| Failure::new(FailureKind::BadContext, format!("{what} is not UTF-8")))
}

/// # Safety
/// See `tael_jinja.h`: pointers are valid for the sizes given.
#[no_mangle]
pub unsafe extern "C" fn tael_jinja_create(
    source: *const u8,
    size: usize,
    handle: *mut *mut ChatTemplate,
    text: *mut Text,
) -> i32 {
    let mut made = std::ptr::null_mut();
    let code = guarded(text, || {
        let source = text_of(source, size, "the template")?;
        made = Box::into_raw(Box::new(ChatTemplate::new(source)?));
        Ok(String::new())
    });
    *handle = made;
    code
}

/// # Safety
/// See `tael_jinja.h`: `handle` came from `tael_jinja_create` and has not been freed.
#[no_mangle]
pub unsafe extern "C" fn tael_jinja_render(
    handle: *const ChatTemplate,
    context: *const u8,
    size: usize,
    fuel: u64,
    text: *mut Text,
) -> i32 {
    guarded(text, || {
        (*handle).render(text_of(context, size, "the context")?, fuel)
    })
}

/// # Safety
/// `handle` is null or came from `tael_jinja_create`, and is not used again.
#[no_mangle]
pub unsafe extern "C" fn tael_jinja_free(handle: *mut ChatTemplate) {
    if !handle.is_null() {
        let handle = Box::from_raw(handle);
        let _ = catch_unwind(AssertUnwindSafe(move || drop(handle)));
    }
}

/// # Safety
/// `text` was filled by a function above, or is all zero; it is empty afterwards.
#[no_mangle]
pub unsafe extern "C" fn tael_jinja_text_free(text: *mut Text) {
    let text = &mut *text;
    if !text.data.is_null() {
        drop(Vec::from_raw_parts(text.data, text.size, text.capacity));
    }
    text.data = std::ptr::null_mut();
    text.size = 0;
    text.capacity = 0;
}
