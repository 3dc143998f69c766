//! Metadata of a GGUF file: named, typed values.

use std::fmt;

use indexmap::IndexMap;

use crate::sniff::clip;

/// The key-value pairs of a file, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMetadata(pub(super) IndexMap<String, Value>);

/// A metadata value.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // named after what they hold
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// A metadata array; its elements are of one type.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)] // named after what they hold
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Strings),
    Array(Vec<Array>),
}

/// An array of strings in one allocation: vocabularies have hundreds of thousands.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn with_capacity(strings: usize) -> Self {
        Self { text: String::new(), ends: Vec::with_capacity(strings) }
    }

    pub(super) fn push(&mut self, string: &str) {
        self.text.push_str(string);
        self.ends.push(self.text.len());
    }

    /// Number of strings.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at an index.
    pub fn get(&self, index: usize) -> Option<&str> {
        (index < self.len()).then(|| self.at(index))
    }

    /// All strings in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|index| self.at(index))
    }

    fn at(&self, index: usize) -> &str {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[index]]
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(strings: I) -> Self {
        let mut all = Self::default();
        strings.into_iter().for_each(|s| all.push(s.as_ref()));
        all
    }
}

impl fmt::Debug for Strings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Why a metadata value cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetaError {
    /// The file lacks the key.
    #[error("metadata key {key:?} is missing (it should hold {expected})")]
    Missing {
        /// The key asked for.
        key: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The value has another type, or is out of the range of the type asked for.
    #[error("metadata key {key:?} should hold {expected}, but holds {found}")]
    Type {
        /// The key asked for.
        key: String,
        /// What it should hold.
        expected: &'static str,
        /// What it holds.
        found: String,
    },
}

impl GgufMetadata {
    /// The value of a key, of whatever type.
    pub fn value(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The value of a key as `T`, or `None` when the file lacks the key.
    ///
    /// # Errors
    ///
    /// When the value is not a `T`. Integers convert when the value fits, whatever the stored width; nothing else
    /// converts.
    pub fn get<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, MetaError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(value) => Ok(Some(value)),
            None => {
                let (key, found) = (clip(key), value.describe());
                Err(MetaError::Type { key, expected: T::EXPECTED, found })
            }
        }
    }

    /// The value of a key as `T`.
    ///
    /// # Errors
    ///
    /// As [`GgufMetadata::get`], and when the file lacks the key.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, MetaError> {
        self.get(key)?.ok_or_else(|| MetaError::Missing { key: clip(key), expected: T::EXPECTED })
    }

    /// All pairs, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Value {
    /// The type and value in words, for messages and listings: long ones are cut.
    pub fn describe(&self) -> String {
        match self {
            Value::U8(x) => format!("the u8 {x}"),
            Value::I8(x) => format!("the i8 {x}"),
            Value::U16(x) => format!("the u16 {x}"),
            Value::I16(x) => format!("the i16 {x}"),
            Value::U32(x) => format!("the u32 {x}"),
            Value::I32(x) => format!("the i32 {x}"),
            Value::U64(x) => format!("the u64 {x}"),
            Value::I64(x) => format!("the i64 {x}"),
            Value::F32(x) => format!("the f32 {x}"),
            Value::F64(x) => format!("the f64 {x}"),
            Value::Bool(x) => format!("the bool {x}"),
            Value::String(x) => format!("the string {:?}", clip(x)),
            Value::Array(x) => format!("an array of {} {}", x.len(), x.type_name()),
        }
    }

    /// The value of any integer type.
    fn int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(x) => x.into(),
            Value::I8(x) => x.into(),
            Value::U16(x) => x.into(),
            Value::I16(x) => x.into(),
            Value::U32(x) => x.into(),
            Value::I32(x) => x.into(),
            Value::U64(x) => x.into(),
            Value::I64(x) => x.into(),
            _ => return None,
        })
    }
}

/// Runs `$body` with the elements of any array bound to `$elements`.
macro_rules! each_array {
    ($array:expr, $elements:ident => $body:expr) => {
        match $array {
            Array::U8($elements) => $body,
            Array::I8($elements) => $body,
            Array::U16($elements) => $body,
            Array::I16($elements) => $body,
            Array::U32($elements) => $body,
            Array::I32($elements) => $body,
            Array::U64($elements) => $body,
            Array::I64($elements) => $body,
            Array::F32($elements) => $body,
            Array::F64($elements) => $body,
            Array::Bool($elements) => $body,
            Array::String($elements) => $body,
            Array::Array($elements) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    pub fn len(&self) -> usize {
        each_array!(self, elements => elements.len())
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements' type, in words.
    pub fn type_name(&self) -> &'static str {
        match self {
            Array::U8(_) => "u8",
            Array::I8(_) => "i8",
            Array::U16(_) => "u16",
            Array::I16(_) => "i16",
            Array::U32(_) => "u32",
            Array::I32(_) => "i32",
            Array::U64(_) => "u64",
            Array::I64(_) => "i64",
            Array::F32(_) => "f32",
            Array::F64(_) => "f64",
            Array::Bool(_) => "bool",
            Array::String(_) => "strings",
            Array::Array(_) => "arrays",
        }
    }

    /// The elements converted to one integer type, if they are integers and every one fits.
    fn ints<T>(&self) -> Option<Vec<T>>
    where
        T: TryFrom<u8> + TryFrom<i8> + TryFrom<u16> + TryFrom<i16>,
        T: TryFrom<u32> + TryFrom<i32> + TryFrom<u64> + TryFrom<i64>,
    {
        fn all<S: Copy, T: TryFrom<S>>(elements: &[S]) -> Option<Vec<T>> {
            elements.iter().map(|&x| T::try_from(x).ok()).collect()
        }
        match self {
            Array::U8(x) => all(x),
            Array::I8(x) => all(x),
            Array::U16(x) => all(x),
            Array::I16(x) => all(x),
            Array::U32(x) => all(x),
            Array::I32(x) => all(x),
            Array::U64(x) => all(x),
            Array::I64(x) => all(x),
            _ => None,
        }
    }
}

/// A type that metadata values convert to; see [`GgufMetadata::get`].
pub trait FromValue<'a>: Sized {
    /// The type in words, for the error.
    const EXPECTED: &'static str;

    /// The value, or `None` when it has another type or does not fit.
    fn from_value(value: &'a Value) -> Option<Self>;
}

macro_rules! from_value {
    ($($type:ty: $expected:literal, $value:ident => $convert:expr;)*) => {$(
        impl<'a> FromValue<'a> for $type {
            const EXPECTED: &'static str = $expected;

            fn from_value($value: &'a Value) -> Option<Self> {
                $convert
            }
        }
    )*};
}

from_value! {
    u8: "an unsigned 8-bit integer", v => v.int()?.try_into().ok();
    u16: "an unsigned 16-bit integer", v => v.int()?.try_into().ok();
    u32: "an unsigned 32-bit integer", v => v.int()?.try_into().ok();
    i32: "a 32-bit integer", v => v.int()?.try_into().ok();
    u64: "an unsigned integer", v => v.int()?.try_into().ok();
    i64: "an integer", v => v.int()?.try_into().ok();
    usize: "an unsigned integer", v => v.int()?.try_into().ok();
    f32: "a floating-point number", v => match v {
        Value::F32(x) => Some(*x),
        Value::F64(x) => Some(*x as f32),
        _ => None,
    };
    f64: "a floating-point number", v => match v {
        Value::F32(x) => Some((*x).into()),
        Value::F64(x) => Some(*x),
        _ => None,
    };
    bool: "a bool", v => match v {
        Value::Bool(x) => Some(*x),
        _ => None,
    };
    &'a str: "a string", v => match v {
        Value::String(x) => Some(x),
        _ => None,
    };
    &'a Strings: "an array of strings", v => match v {
        Value::Array(Array::String(x)) => Some(x),
        _ => None,
    };
    &'a Array: "an array", v => match v {
        Value::Array(x) => Some(x),
        _ => None,
    };
    Vec<u32>: "an array of unsigned 32-bit integers", v => <&Array>::from_value(v)?.ints();
    Vec<i32>: "an array of 32-bit integers", v => <&Array>::from_value(v)?.ints();
    // Writers that have no unsigned ones store them signed.
    Vec<u8>: "an array of bytes", v => match <&Array>::from_value(v)? {
        Array::I8(x) => Some(x.iter().map(|byte| byte.cast_unsigned()).collect()),
        array => array.ints(),
    };
    Vec<u64>: "an array of unsigned integers", v => <&Array>::from_value(v)?.ints();
    Vec<usize>: "an array of unsigned integers", v => <&Array>::from_value(v)?.ints();
    &'a [f32]: "an array of f32", v => match v {
        Value::Array(Array::F32(x)) => Some(x),
        _ => None,
    };
    &'a [bool]: "an array of bools", v => match v {
        Value::Array(Array::Bool(x)) => Some(x),
        _ => None,
    };
}

impl FromIterator<(String, Value)> for GgufMetadata {
    /// The last value of a key counts.
    fn from_iter<T: IntoIterator<Item = (String, Value)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> GgufMetadata {
        let pairs = [
            ("u8", Value::U8(200)),
            ("negative", Value::I64(-1)),
            ("big", Value::U64(u64::MAX)),
            ("f32", Value::F32(1.5)),
            ("text", Value::String("x".repeat(999))),
            ("flags", Value::Array(Array::Bool(vec![true, false]))),
            ("ids", Value::Array(Array::I32(vec![1, 2]))),
            ("signed", Value::Array(Array::I32(vec![1, -2]))),
            ("words", Value::Array(Array::String(["a", "", "bc"].into_iter().collect()))),
        ];
        GgufMetadata(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
    }

    #[test]
    fn integers_convert_when_they_fit() {
        let m = metadata();
        assert_eq!(m.require::<u32>("u8"), Ok(200));
        assert_eq!(m.require::<i64>("negative"), Ok(-1));
        assert_eq!(m.require::<u64>("big"), Ok(u64::MAX));
        assert_eq!(m.require::<Vec<usize>>("ids"), Ok(vec![1, 2]));
        assert_eq!(m.require::<f64>("f32"), Ok(1.5));
        assert_eq!(m.get::<u32>("absent"), Ok(None));
    }

    #[test]
    fn errors_name_the_key_what_was_wanted_and_what_is_there() {
        let m = metadata();
        let message = |e: MetaError| e.to_string();
        assert_eq!(
            message(m.require::<u32>("negative").unwrap_err()),
            "metadata key \"negative\" should hold an unsigned 32-bit integer, but holds the i64 -1"
        );
        assert_eq!(
            message(m.require::<i64>("big").unwrap_err()),
            "metadata key \"big\" should hold an integer, but holds the u64 18446744073709551615"
        );
        assert_eq!(
            message(m.require::<Vec<u8>>("signed").unwrap_err()),
            "metadata key \"signed\" should hold an array of bytes, but holds an array of 2 i32"
        );
        assert_eq!(Vec::<u8>::from_value(&Value::Array(Array::I8(vec![-1, 2]))), Some(vec![255, 2]));
        assert_eq!(
            message(m.require::<Vec<u32>>("signed").unwrap_err()),
            "metadata key \"signed\" should hold an array of unsigned 32-bit integers, but holds an array of 2 i32"
        );
        assert_eq!(
            message(m.require::<f32>("u8").unwrap_err()),
            "metadata key \"u8\" should hold a floating-point number, but holds the u8 200"
        );
        assert_eq!(
            message(m.require::<&str>("absent").unwrap_err()),
            "metadata key \"absent\" is missing (it should hold a string)"
        );
        let long = message(m.require::<bool>("text").unwrap_err());
        assert!(long.ends_with("x...\"") && long.len() < 260, "{long}");
    }

    #[test]
    fn strings_keep_their_boundaries() {
        let m = metadata();
        let words = m.require::<&Strings>("words").unwrap();
        assert_eq!(words.iter().collect::<Vec<_>>(), ["a", "", "bc"]);
        assert_eq!(
            (words.get(0), words.get(1), words.get(2), words.get(3)),
            (Some("a"), Some(""), Some("bc"), None)
        );
        assert_eq!(format!("{words:?}"), "[\"a\", \"\", \"bc\"]");
    }
}
