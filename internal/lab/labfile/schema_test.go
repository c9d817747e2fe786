package labfile

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/invopop/jsonschema"
	check "github.com/santhosh-tekuri/jsonschema/v6"

	"vnic.dev/vnic/internal/lab"
	"vnic.dev/vnic/internal/testkit"
)

var update = flag.Bool("update", false, "write schema.json anew")

// schema.json is the schema that this test makes from File, its comments and lab.Impairments. Write it anew with
//
//	go test ./internal/lab/labfile -run Schema -update
func TestSchemaIsThatOfFile(t *testing.T) {
	r := &jsonschema.Reflector{FieldNameTag: "yaml", Mapper: func(t reflect.Type) *jsonschema.Schema {
		if t != reflect.TypeFor[Quantity]() {
			return nil
		}
		return &jsonschema.Schema{Ref: "#/$defs/Quantity"}
	}}
	testkit.OK(t, r.AddGoComments("vnic.dev/vnic/internal/lab/labfile", ".."))
	testkit.OK(t, r.AddGoComments("vnic.dev/vnic/internal/lab/labfile", "../../wire/uplink"))
	s := r.Reflect(&File{})
	s.ID = ""
	s.Definitions["Quantity"] = &jsonschema.Schema{Description: "Quantity is a number, with or without a unit.",
		AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "number"}}}
	link := s.Definitions["Link"]
	r.DoNotReference = true
	link.Properties = r.ReflectFromType(linkType).Properties
	link.Required = []string{"of"}
	s2, _ := link.Properties.Get("of")
	s2.Description = "Of is the NIC, as a.nic0."
	for _, f := range lab.Impairments() {
		p, _ := link.Properties.Get(f.Key)
		if p.Description = f.Help; p.Type == "" {
			p.Description += "; as " + f.Example
		}
	}
	b := testkit.Must(json.MarshalIndent(s, "", "  "))(t)
	b = append(b, '\n')
	if *update {
		testkit.OK(t, os.WriteFile("schema.json", b, 0o644))
	} else if !bytes.Equal(b, Schema()) {
		t.Error("schema.json is not that of File: write it anew with -update")
	}
}

// The schema accepts the presets and all.yaml, as they are and as Lab.YAML writes them. It refuses the written files
// with a wrong key.
func TestSchemaTakesWhatParseReads(t *testing.T) {
	c := check.NewCompiler()
	doc, err := check.UnmarshalJSON(bytes.NewReader(Schema()))
	testkit.OK(t, err)
	testkit.OK(t, c.AddResource("lab.json", doc))
	s := testkit.Must(c.Compile("lab.json"))(t)
	valid := func(text []byte) error {
		j := testkit.Must(yaml.YAMLToJSON(text))(t)
		v := testkit.Must(check.UnmarshalJSON(bytes.NewReader(j)))(t)
		return s.Validate(v)
	}
	for _, name := range append(Presets(), "testdata/all.yaml") {
		text := testkit.Must(read(name, nil))(t)
		testkit.OK(t, valid(text))
		full := testkit.Must(testkit.Must(Parse(name, text))(t).YAML())(t)
		testkit.OK(t, valid(full))
		for _, key := range []string{"guests:", "nics:", "name:"} {
			if valid([]byte(strings.Replace(string(full), key, "x"+key, 1))) == nil {
				t.Errorf("%s: the schema takes x%s", name, key)
			}
		}
	}
}
