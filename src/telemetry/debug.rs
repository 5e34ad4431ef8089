//! The `Debug` of types that show some of their fields, for logs.

/// Implements `Debug` for a type of this name. `it` stands for the value in the expressions of the fields.
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
