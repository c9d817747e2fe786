package stat

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"vnic.dev/vnic/internal/testkit"
)

// undeclared returns the names of the fields of a T that no counter of the list reads. It also checks that the counters
// have keys and fields of their own, and values that survive JSON.
func undeclared[T any](t *testing.T, list []counter[T]) (left []string) {
	t.Helper()
	var v T
	names := map[uint64]string{}
	for i, f := range slices.DeleteFunc(reflect.VisibleFields(reflect.TypeOf(v)),
		func(f reflect.StructField) bool { return f.Anonymous }) {
		names[uint64(i+1)] = f.Name
		reflect.ValueOf(&v).Elem().FieldByIndex(f.Index).SetUint(uint64(i + 1))
	}
	keys := map[string]bool{}
	for _, c := range list {
		if keys[c.key] || c.key == "" {
			t.Errorf("two counters %q, or one without a key", c.key)
		}
		keys[c.key] = true
		if names[*c.value(&v)] == "" {
			t.Errorf("%s: its field has another counter too", c.key)
		}
		delete(names, *c.value(&v))
	}
	b := testkit.Must(json.Marshal(any(v)))(t)
	var back T
	testkit.OK(t, json.Unmarshal(b, &back))
	for _, c := range list {
		if *c.value(&v) != *c.value(&back) {
			t.Errorf("%s: %d becomes %d in %s", c.key, *c.value(&v), *c.value(&back), b)
		}
	}
	return slices.Sorted(maps.Values(names))
}

// TestEveryCounterIsShown: the JSON has all counters except a queue's RetransBytes and the engines' TableBytes.
func TestEveryCounterIsShown(t *testing.T) {
	if d := cmp.Diff([]string{"RetransBytes"}, undeclared(t, directionCounters)); d != "" {
		t.Errorf("of a queue: %s", d) // RetransBytes is 0 for queues: only flow counters set it
	}
	if d := cmp.Diff([]string{"TableBytes"}, undeclared(t, engineCounters)); d != "" {
		t.Errorf("of the engines: %s", d)
	}
}

func TestCounterIsDeclaredOnce(t *testing.T) {
	was := directionCounters
	t.Cleanup(func() { directionCounters = was })
	directionCounters = append(slices.Clip(was), counter[Direction]{"retrans_bytes", "AGAIN",
		"retrans_bytes_total", "Payload bytes seen again.", nil,
		func(d *Direction) *uint64 { return &d.RetransBytes }})
	p := PortCounters{Name: "A", Queues: []Queue{{Index: 3, RX: Direction{Packets: 1, RetransBytes: 77}}}}
	b, err := json.Marshal(p)
	count := func(what string) int { return strings.Count(string(b), what) }
	if err != nil || count(`"retrans_bytes":77`) != 1 || count(`"retrans_bytes":0`) != 1 {
		t.Errorf("%s, %v", b, err)
	}
	var back PortCounters
	if err := json.Unmarshal(b, &back); err != nil || back.Queues[0].RX.RetransBytes != 77 {
		t.Errorf("%+v, %v", back, err)
	}
	var out bytes.Buffer
	testkit.OK(t, Table(&out, nil, &Snapshot{Ports: []PortCounters{p}}))
	head, row := "", ""
	for line := range strings.Lines(out.String()) {
		switch f := strings.Fields(line); {
		case strings.Contains(line, "QUEUE"):
			head = f[len(f)-1]
		case len(f) > 2 && f[1] == "3" && f[2] == "rx":
			row = strings.Join(f[len(f)-2:], " ")
		}
	}
	if head != "AGAIN" || row != "77 B" {
		t.Errorf("the table's last column is %s, %s:\n%s", head, row, &out)
	}
	var x exposition
	p.collect(&x)
	found := map[string]float64{}
	for _, f := range parsed(t, x.text()) {
		for _, m := range f.GetMetric() {
			if f.GetName() == "vnic_retrans_bytes_total" {
				var labels []string
				for _, l := range m.GetLabel() {
					labels = append(labels, l.GetValue())
				}
				found[strings.Join(labels, " ")] = m.GetCounter().GetValue()
			}
		}
	}
	if d := cmp.Diff(map[string]float64{"rx A 3": 77, "tx A 3": 0}, found); d != "" {
		t.Error(d)
	}
}

func TestCountersOfAnotherVersion(t *testing.T) {
	var d Direction
	if err := json.Unmarshal([]byte(`{"packets":3,"new":{"x":[1]}}`), &d); err != nil || d != (Direction{Packets: 3}) {
		t.Errorf("%+v, %v", d, err)
	}
	for _, bad := range []string{`{"packets":-1}`, `{"packets":"3"}`, `[]`, `{"packets":{}}`} {
		if err := json.Unmarshal([]byte(bad), &d); err == nil {
			t.Errorf("%s was read", bad)
		}
	}
}
