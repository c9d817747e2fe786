package labfile

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema of lab files, draft 2020-12. It describes keys and the kinds of
// their values; it does not check that names in values exist.
func Schema() []byte { return slices.Clone(schema) }
