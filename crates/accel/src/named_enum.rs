//! Enums whose variants have names on command lines, on the wire and in files.

/// Declares an enum with `ALL` its variants, `name`, `Display`, and `FromStr`, whose error `$unknown` makes of a name that
/// no variant has.
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$attribute:meta])*
        pub enum $type:ident ($error:ty = $unknown:expr) {
            $($(#[$doc:meta])* $variant:ident = $name:literal,)+
        }
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$doc])* $variant,)+
        }

        impl $type {
            /// Every variant.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$variant),+];

            /// Its name, which never changes.
            pub fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $error;
            fn from_str(name: &str) -> Result<$type, $error> {
                let known = $type::ALL.into_iter().find(|variant| variant.name() == name);
                known.ok_or_else(|| $unknown(name.to_owned()))
            }
        }
    };
}
