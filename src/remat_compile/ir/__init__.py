"""FB-Graph: data, text form, analyses, reference semantics. Knows no other package."""
