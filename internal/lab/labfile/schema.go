package labfile

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema of lab files, draft 2020-12. It does not check that named parts exist.
func Schema() []byte { return slices.Clone(schema) }
