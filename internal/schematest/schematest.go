// Package schematest checks in tests that JSON schemas match Go types, and JSON texts against schemas.
package schematest

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/invopop/jsonschema"
	check "github.com/santhosh-tekuri/jsonschema/v6"

	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/internal/testkit"
)

const module = "vnic.dev/vnic/"

// Holds fails the test unless the file has the schema of the type to which v points. The schema's descriptions are the
// Go comments of the packages in dirs, directories below root, the module's directory. With -update Holds writes the
// file instead.
func Holds(t *testing.T, file, title string, v any, root string, dirs ...string) {
	t.Helper()
	zero := json.Number("0")
	r := &jsonschema.Reflector{Anonymous: true, Mapper: func(t reflect.Type) *jsonschema.Schema {
		switch t.Kind() {
		case reflect.Uint, reflect.Uint64, reflect.Uint32:
			return &jsonschema.Schema{Type: "integer", Minimum: zero}
		}
		return nil
	}}
	pkg := reflect.TypeOf(v).Elem().PkgPath()
	r.Namer = func(t reflect.Type) string {
		if t.PkgPath() == pkg {
			return t.Name()
		}
		return t.String() // packages may have types of the same name
	}
	for _, dir := range dirs {
		testkit.OK(t, r.AddGoComments(module+dir, root+"/"+dir))
	}
	for name, text := range r.CommentMap {
		r.CommentMap[name] = strings.Join(strings.Fields(text), " ")
	}
	s := r.Reflect(v)
	s.Title = title
	b := append(testkit.Must(json.MarshalIndent(s, "", "  "))(t), '\n')
	if golden.Updating() {
		testkit.OK(t, os.WriteFile(file, b, 0o644))
		return
	}
	if !bytes.Equal(b, testkit.Must(os.ReadFile(file))(t)) {
		t.Errorf("%s is not that of %T: write it anew with -update", file, v)
	}
}

// Compile returns a function that returns an error unless a text is JSON that the schema allows.
func Compile(t testing.TB, schema string) (valid func(text string) error) {
	t.Helper()
	c := check.NewCompiler()
	testkit.OK(t, c.AddResource("x.json", testkit.Must(check.UnmarshalJSON(strings.NewReader(schema)))(t)))
	s := testkit.Must(c.Compile("x.json"))(t)
	return func(text string) error {
		v, err := check.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return err
		}
		return s.Validate(v)
	}
}
