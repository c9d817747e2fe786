package labfile

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema is the JSON schema of lab files, draft 2020-12. It knows keys and kinds of values, not what they refer to.
func Schema() []byte { return slices.Clone(schema) }
