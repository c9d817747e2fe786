package run

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/testkit"
)

// node is the part of JSON schema that ours uses.
type node struct {
	Schema     string           `json:"$schema"`
	Title      string           `json:"title"`
	About      string           `json:"description"`
	Type       any              `json:"type"` // a name, or several
	Required   []string         `json:"required"`
	Additional *bool            `json:"additionalProperties"`
	Properties map[string]*node `json:"properties"`
	Items      *node            `json:"items"`
	Enum       []any            `json:"enum"`
	Const      any              `json:"const"`
	Minimum    *float64         `json:"minimum"`
}

func parseSchema(t *testing.T) *node {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(Schema))
	d.DisallowUnknownFields() // a word that validate does not know would be no check at all
	n := new(node)
	testkit.OK(t, d.Decode(n))
	return n
}

// validate says where v is not as n has it.
func (n *node) validate(at string, v any) (wrong []string) {
	is := func(ok bool, format string, args ...any) {
		if !ok {
			wrong = append(wrong, at+": "+fmt.Sprintf(format, args...))
		}
	}
	types := []any{n.Type}
	if list, ok := n.Type.([]any); ok {
		types = list
	}
	is(n.Type == nil || slices.ContainsFunc(types, func(name any) bool { return isType(v, name.(string)) }),
		"%v is not of type %v", v, n.Type)
	is(n.Enum == nil || slices.Contains(n.Enum, v), "%v is none of %v", v, n.Enum)
	is(n.Const == nil || n.Const == v, "%v is not %v", v, n.Const)
	switch v := v.(type) {
	case float64:
		is(n.Minimum == nil || v >= *n.Minimum, "%v is less than %v", v, n.Minimum)
	case []any:
		for i, e := range v {
			wrong = append(wrong, n.Items.validate(fmt.Sprintf("%s[%d]", at, i), e)...)
		}
	case map[string]any:
		for _, name := range n.Required {
			_, ok := v[name]
			is(ok, "no %s", name)
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if p := n.Properties[name]; p != nil {
				wrong = append(wrong, p.validate(at+"."+name, v[name])...)
			} else {
				is(n.Additional == nil || *n.Additional, "%s is unknown", name)
			}
		}
	}
	return wrong
}

func isType(v any, name string) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case float64:
		return name == "number" || name == "integer" && v == float64(int64(v))
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}

// asJSON is what a reader of v's JSON gets.
func asJSON(t *testing.T, v any) any {
	t.Helper()
	b := testkit.Must(json.Marshal(v))(t)
	var out any
	testkit.OK(t, json.Unmarshal(b, &out))
	return out
}

func validReport(t *testing.T, rep *Report) {
	t.Helper()
	for _, w := range parseSchema(t).validate("report", asJSON(t, rep)) {
		t.Error(w)
	}
}

// sample is a report with every field set, as `vnic run --audit` gives it.
func sample() *Report {
	cpu, ratio := 4.25, 2.0
	r := Run{Mode: "devmem", Bytes: 268435456, Seconds: 1.05, SHA256Match: true, SHA256: strings.Repeat("0a", 32),
		PayloadBytesDevice: 268435456, HeaderBytes: 323680, CopyEngineBytes: 268435456, GuestCPUSeconds: &cpu,
		GuestCPU: &CPU{User: 3, System: 1, IRQ: 0.25}, TX: Where{Device: 268435456}, RX: Where{Device: 268435456},
		Seed: 7, Rounds: 1, Fragments: 67000, Audit: &AuditCount{BytesScanned: 1 << 30},
		Hold: &Hold{Tokens: 16384, Stalls: 1}, LateTokens: &LateTokens{Tokens: 512, NoBuffer: 9}}
	c := r
	c.Mode, c.Seconds, c.PayloadBytesDevice, c.PayloadBytesHost, c.CopyEngineBytes = "copy", 2.1, 0, r.Bytes, 2*r.Bytes
	c.Hold, c.LateTokens = nil, nil
	c.TX, c.RX, c.Fragments = Where{Host: r.Bytes}, Where{Host: r.Bytes}, 0
	c.RetransmittedBytes, c.DroppedPackets = 1448, 1
	c.Audit = &AuditCount{HitsSender: 5, HitsReceiver: 4, BytesFound: 9 << 20, BytesScanned: 1 << 30}
	return &Report{Schema: 1, NIC: NICVirtio, BindQueues: 1, Runs: []Run{r, c}, Ratio: &ratio, QEMU: "11.1.2",
		Kernel: "7.2.12", Accel: "tcg", Guest: "qemu", P2P: true, MTU: 1500, Family: 4, Loss: 0.01, Reorder: 0.02, Seed: 7,
		Untested: []string{"qemu 11.1.3, tested with 11.1.2"}, BootSeconds: 4.6, Digest: DigestPieces}
}

func TestReportIsAsItsSchema(t *testing.T) {
	validReport(t, sample())
	empty := &Report{Schema: 1, NIC: NICGVE, BindQueues: 15, Runs: []Run{}, Accel: "none", Guest: "inproc", Family: 6,
		Digest: DigestSHA256}
	validReport(t, empty)
}

// Every field is in the schema, and required unless it may be left out.
func TestSchemaKnowsEveryField(t *testing.T) {
	var walk func(at string, n *node, typ reflect.Type)
	walk = func(at string, n *node, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			if typ.Kind() == reflect.Slice {
				n = n.Items
			}
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct {
			return
		}
		fields := reflect.VisibleFields(typ)
		fields = slices.DeleteFunc(fields, func(f reflect.StructField) bool { return f.Anonymous })
		for _, f := range fields {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			p := n.Properties[name]
			if p == nil {
				t.Errorf("%s.%s is not in the schema", at, name)
				continue
			}
			if slices.Contains(n.Required, name) == (options == "omitempty") {
				t.Errorf("%s.%s: required %v, %q", at, name, slices.Contains(n.Required, name), options)
			}
			walk(at+"."+name, p, f.Type)
		}
		if len(n.Properties) != len(fields) || n.Additional == nil || *n.Additional {
			t.Errorf("%s: %d properties for %d fields, or others are allowed", at, len(n.Properties), len(fields))
		}
	}
	walk("report", parseSchema(t), reflect.TypeFor[Report]())
}

// The validator sees what is wrong: else the tests above would show nothing.
func TestValidatorSeesWhatIsWrong(t *testing.T) {
	for name, change := range map[string]func(doc, run map[string]any){
		"schema":    func(doc, _ map[string]any) { doc["schema"] = 2.0 },
		"missing":   func(_, run map[string]any) { delete(run, "tx") },
		"unknown":   func(_, run map[string]any) { run["speed"] = 1.0 },
		"type":      func(_, run map[string]any) { run["sha256_match"] = "yes" },
		"negative":  func(_, run map[string]any) { run["bytes"] = -1.0 },
		"fraction":  func(_, run map[string]any) { run["bytes"] = 1.5 },
		"enum":      func(doc, _ map[string]any) { doc["family"] = 5.0 },
		"nested":    func(_, run map[string]any) { run["tx"].(map[string]any)["device"] = nil },
		"not null":  func(_, run map[string]any) { run["seconds"] = nil },
		"no object": func(doc, _ map[string]any) { doc["runs"] = []any{"devmem"} },
	} {
		doc := asJSON(t, sample()).(map[string]any)
		change(doc, doc["runs"].([]any)[0].(map[string]any))
		if len(parseSchema(t).validate("report", doc)) == 0 {
			t.Errorf("%s: passes", name)
		}
	}
}

func TestSchemaIsFormatted(t *testing.T) {
	var b bytes.Buffer
	if err := json.Indent(&b, []byte(Schema), "", "  "); err != nil || b.String() != Schema {
		t.Errorf("schema.json is not as json.Indent has it (%v)", err)
	}
}
