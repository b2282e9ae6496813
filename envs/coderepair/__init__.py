"""Code repair: small programs, spoilt by one slip each, and what the interpreter says of them."""
