package labfile

import (
	_ "embed"
	"slices"
)

//go:embed schema.json
var schema []byte

// Schema returns the JSON schema of lab files, draft 2020-12. The schema does not check that the
// parts to which a file refers by name exist.
func Schema() []byte { return slices.Clone(schema) }
