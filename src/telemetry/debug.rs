//! A macro that implements `Debug` for types that show only some of their fields.

/// Implements `Debug` for `$type`, which prints the name `$name` and these fields. In the expressions of the fields,
/// `$it` stands for the value.
macro_rules! debug {
    ($type:ty as $name:literal $(for [$($parameter:tt)+])?, |$it:ident| $($field:ident: $value:expr),*) => {
        impl$(<$($parameter)+>)? std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                f.debug_struct($name)$(.field(stringify!($field), &$value))*.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug;
