//! How a value becomes bytes, and bytes a value.

use std::error::Error;

/// The error of a [`Format`].
pub type FormatError = Box<dyn Error + Send + Sync>;

/// How values of type `T` are written down. The default is [`Json`](crate::format::Json). To choose another, see
/// [`Shared::with_format`](crate::Shared::with_format).
///
/// [`decode`](Format::decode) must read what [`encode`](Format::encode) made. A commit tries that before it sends
/// anything, so that a value which cannot be read again never replaces one that can.
///
/// # Examples
///
/// ```
/// use zk_rwlock::format::{Format, FormatError};
/// use zk_rwlock::{Error, Memory, Shared};
///
/// /// Numbers, big-endian.
/// struct BigEndian;
///
/// impl Format<u64> for BigEndian {
///     fn name(&self) -> &str {
///         "u64-be"
///     }
///
///     fn encode(&self, value: &u64) -> Result<Vec<u8>, FormatError> {
///         Ok(value.to_be_bytes().to_vec())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<u64, FormatError> {
///         Ok(u64::from_be_bytes(bytes.try_into()?))
///     }
/// }
/// # tokio_test::block_on(async {
/// let counter = Shared::with_format(&Memory::new(), "/counter", BigEndian).initial(|| 41).build()?;
/// *counter.write().await? += 0; // dropped without a commit: nothing is written
/// let mut value = counter.write().await?;
/// *value += 1;
/// value.commit().await?;
/// drop(value);
/// assert_eq!(*counter.read().await?, 42);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot write and read a `{T}`",
    note = "with the format `Json` a value needs `serde::Serialize` and `serde::de::DeserializeOwned`; `Raw` is for bytes, such as `Vec<u8>` and `String`"
)]
pub trait Format<T>: Send + Sync + 'static {
    /// The name of the format. It is kept beside the value, and compared before anything is decoded. At most 64
    /// letters, digits, `.`, `_`, `+` and `-`.
    fn name(&self) -> &str;

    /// The bytes of a value.
    ///
    /// # Errors
    /// If the format cannot express the value. Then nothing is sent.
    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError>;

    /// The value of these bytes.
    ///
    /// # Errors
    /// If the bytes are not those of a `T`.
    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError>;
}

/// JSON, by serde. People can read it with `zkCli`, too. Numbers come back exactly, floating ones to the last bit. JSON
/// has no infinities and no NaN: it writes `null` in their place. An `f64` does not read that back, so the commit is
/// [refused](crate::error::ValueError::Unwritable); an `Option<f64>` comes back as `None`. `Some(None)` comes back as `None`, too.
#[cfg(feature = "json")]
#[cfg_attr(docsrs, doc(cfg(feature = "json")))]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Format<T> for Json {
    fn name(&self) -> &str {
        "json"
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError> {
        Ok(serde_json::to_vec(value)?)
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError> {
        Ok(serde_json::from_slice(bytes)?)
    }
}

/// The bytes as they are, for `Vec<u8>`, `Box<[u8]>` and `String`, which has to be UTF-8.
///
/// # Examples
///
/// ```
/// # use zk_rwlock::format::Raw;
/// # use zk_rwlock::{Error, Memory, Shared};
/// # tokio_test::block_on(async {
/// let blob: Shared<Vec<u8>> = Shared::with_format(&Memory::new(), "/blob", Raw).build()?;
/// blob.write().replacing(vec![0, 255]).await?.commit().await?;
/// assert_eq!(*blob.read().await?, [0, 255]);
/// # Ok::<(), Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl<T> Format<T> for Raw
where
    T: AsRef<[u8]> + TryFrom<Vec<u8>, Error: Error + Send + Sync + 'static>,
{
    fn name(&self) -> &str {
        "raw"
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>, FormatError> {
        Ok(value.as_ref().to_vec())
    }

    fn decode(&self, bytes: &[u8]) -> Result<T, FormatError> {
        Ok(T::try_from(bytes.to_vec())?)
    }
}
