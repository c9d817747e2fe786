package devmemtest

import (
	"slices"
	"strings"
	"testing"
)

func TestCheckRunsACaseAsGoTestDoes(t *testing.T) {
	var order []string
	world := func(t T) *World {
		t.Cleanup(func() { order = append(order, "world") })
		return &World{}
	}
	for _, c := range []struct {
		name            string
		run             func(e *env)
		failed, skipped bool
		log             string
	}{
		{"passes", func(e *env) { e.Cleanup(func() { order = append(order, "case") }) }, false, false, ""},
		{"fails and goes on", func(e *env) { e.Errorf("one %d", 1); e.Error("two") }, true, false, "one 1|two"},
		{"ends", func(e *env) { e.Fatalf("no %s", "more"); e.Error("unreachable") }, true, false, "no more"},
		{"ends in a helper", func(e *env) { e.errorIs("what", nil, nil); e.equal("bytes", []byte{1}, []byte{2}) }, true,
			false, "they differ from byte 0 on"},
		{"fails in a cleanup", func(e *env) { e.Cleanup(func() { e.Fatal("late") }) }, true, false, "late"},
		{"is not for this", func(e *env) { e.Skip("why") }, false, true, "why"},
		{"sees its context end", func(e *env) { e.Cleanup(func() { <-e.Context().Done() }) }, false, false, ""},
	} {
		order = nil
		r := Check(t.Context(), Case{"group/" + c.name, c.run}, world)
		if r.Name != "group/"+c.name || r.Failed != c.failed || r.Skipped != c.skipped {
			t.Errorf("%+v", r)
		}
		want := strings.Split(c.log, "|")
		for i, l := range r.Log {
			if i >= len(want) || !strings.HasSuffix(l, want[i]) || c.failed && !strings.Contains(l, "check_test.go:") {
				t.Errorf("%s: log %q", c.name, r.Log)
			}
		}
		if order[len(order)-1] != "world" || c.name == "passes" && !slices.Equal(order, []string{"case", "world"}) {
			t.Errorf("%s: cleaned up %v", c.name, order)
		}
	}
	if r := Check(t.Context(), Case{"x", nil}, func(t T) *World { t.Fatal("no world"); return nil }); !r.Failed {
		t.Errorf("%+v", r)
	}
}

func TestCasesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.Name] || !strings.Contains(c.Name, "/") || c.run == nil {
			t.Errorf("%q", c.Name)
		}
		seen[c.Name] = true
	}
}
