package stat

import (
	"bytes"
	"maps"
	"math"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"vnic.dev/vnic/internal/testkit"
)

func parsed(t testing.TB, text []byte) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v, in %s", err, text)
	}
	return families
}

func written(t testing.TB, families map[string]*dto.MetricFamily) string {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(families)) {
		testkit.Must(expfmt.MetricFamilyToText(&b, families[name]))(t)
	}
	return b.String()
}

func TestExpositionIsWhatPrometheusWrites(t *testing.T) {
	var x exposition
	const help = "Of \"b\", C:\\ and\nmore."
	// These values have another order if they are sorted with quotes around them.
	values := []string{"port b", "port", "port!", "", `a"b`, `a\`, "a\nb", `a\nb`, "\r\t\x00\x7f", "\u2028é€", `",z="`,
		`"} 1` + "\nevil 1"}
	for i, v := range values {
		x.add("b_total", help, float64(i)*1e6, "z", v, "a", "y")
		x.add("b_total", help, -1, "z", v, "a", "x")
	}
	x.add("a", "one", 1.5)
	x.add("c", "two", math.NaN())
	for l, v := range map[string]float64{"+": math.Inf(1), "-": math.Inf(-1), "0": 0,
		"large": math.MaxFloat64, "whole": 1 << 53, "max": math.MaxUint64, "small": 5e-324} {
		x.add("d", "three", v, "l", l)
	}
	x.summarize("s", "four", []time.Duration{1e9, 2e9, 3e9, 4e9, 5e9}, 15*time.Second, 1e7)
	families := parsed(t, x.text())
	if d := cmp.Diff(written(t, families), string(x.text())); d != "" {
		t.Error(d)
	}
	got := map[string]bool{}
	for _, m := range families["b_total"].GetMetric() {
		if l := m.GetLabel(); len(l) == 2 && l[0].GetName() == "a" && l[1].GetName() == "z" {
			got[l[0].GetValue()+l[1].GetValue()] = true
		}
	}
	for _, v := range values {
		if !got["x"+v] || !got["y"+v] {
			t.Errorf("no %q", v)
		}
	}
	testkit.Equal(t, "help", families["b_total"].GetHelp(), help)
	for name, want := range map[string]dto.MetricType{"a": dto.MetricType_GAUGE, "b_total": dto.MetricType_COUNTER,
		"s": dto.MetricType_SUMMARY} {
		testkit.Equal(t, name, families[name].GetType(), want)
	}
	q := families["s"].GetMetric()[0].GetSummary()
	if len(q.GetQuantile()) != 5 || q.GetQuantile()[3].GetQuantile() != 0.75 || q.GetQuantile()[3].GetValue() != 4 ||
		q.GetSampleSum() != 15 || q.GetSampleCount() != 1e7 {
		t.Errorf("%v", q)
	}
}

// Prometheus refuses a text with invalid UTF-8, and keeps only one of two samples of a metric with the same labels.
func TestLabelsThatAreNoUTF8AreReplaced(t *testing.T) {
	var x exposition
	x.add("m", "", 1, "l", "a\xff\xfe")
	x.add("m", "", 2, "l", "a\xc3")
	x.add("m", "", 3, "l", "b")
	testkit.Equal(t, "text", string(x.text()), "# HELP m \n# TYPE m gauge\nm{l=\"a\uFFFD\"} 1\nm{l=\"b\"} 3\n")
	parsed(t, x.text())
}

func FuzzExposition(f *testing.F) {
	f.Add("help", "port", "0", 1.0)
	f.Add("a\\\nb", "\"} 1\nx 1", "\xff\\", math.Inf(-1))
	f.Fuzz(func(t *testing.T, help, one, two string, v float64) {
		var x exposition
		x.add("m_total", strings.ToValidUTF8(help, ""), v, "two", two, "one", one)
		families := parsed(t, x.text())
		ms := families["m_total"].GetMetric()
		if len(families) != 1 || len(ms) != 1 || len(ms[0].GetLabel()) != 2 {
			t.Fatalf("%v, of %s", families, x.text())
		}
		for i, want := range []string{one, two} {
			testkit.Equal(t, "label", ms[0].GetLabel()[i].GetValue(), strings.ToValidUTF8(want, "\uFFFD"))
		}
		if got := ms[0].GetCounter().GetValue(); got != v && !(math.IsNaN(v) && math.IsNaN(got)) {
			t.Errorf("%v became %v", v, got)
		}
	})
}

func TestMetricsOfTheProcess(t *testing.T) {
	place(t)
	s := start(t, Options{Command: "serve"})
	s.SetPorts(func() []Port { return []Port{{Name: "a\"\\\n\xffb", Kind: "host"}} })
	runtime.GC()
	w := httptest.NewRecorder()
	metricsHandler(s).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	testkit.Equal(t, "type", w.Header().Get("Content-Type"), expositionType)
	families := parsed(t, w.Body.Bytes())
	testkit.Equal(t, "written again", w.Body.String(), written(t, families))
	value := func(name string) float64 {
		ms := families[name].GetMetric()
		if len(ms) != 1 {
			t.Fatalf("%s: %v", name, ms)
		}
		return ms[0].GetGauge().GetValue() + ms[0].GetCounter().GetValue()
	}
	now := float64(time.Now().UnixNano()) / 1e9
	for name, most := range map[string]float64{
		"process_start_time_seconds": now + 2, "go_memstats_last_gc_time_seconds": now, "process_cpu_seconds_total": 1e9,
		"process_open_fds": value("process_max_fds"), "process_resident_memory_bytes": value("process_virtual_memory_bytes"),
		"process_virtual_memory_bytes": value("process_virtual_memory_max_bytes"), "go_goroutines": 1e6,
		"go_threads": 1e4, "go_sched_gomaxprocs_threads": 1e4, "go_gc_gogc_percent": 1e6, "go_gc_gomemlimit_bytes": 1 << 63,
	} {
		if v := value(name); v <= 0 && name != "process_cpu_seconds_total" || v > most {
			t.Errorf("%s: %v, and not up to %v", name, v, most)
		}
	}
	if v := value("process_start_time_seconds"); v < now-3600 {
		t.Errorf("process_start_time_seconds: %v, and now it is %v", v, now)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	for name, v := range map[string]uint64{ // values that change little between the request and ReadMemStats
		"sys_bytes": m.Sys, "heap_sys_bytes": m.HeapSys, "stack_sys_bytes": m.StackSys, "mspan_sys_bytes": m.MSpanSys,
		"mcache_sys_bytes": m.MCacheSys, "mcache_inuse_bytes": m.MCacheInuse, "buck_hash_sys_bytes": m.BuckHashSys,
		"gc_sys_bytes": m.GCSys, "other_sys_bytes": m.OtherSys, "alloc_bytes_total": m.TotalAlloc, "mallocs_total": m.Mallocs,
	} {
		if got := value("go_memstats_" + name); got < float64(v)/2 || got > float64(v)*2 {
			t.Errorf("go_memstats_%s: %v, and runtime.MemStats has %d", name, got, v)
		}
	}
	if value("go_memstats_heap_inuse_bytes")+value("go_memstats_heap_idle_bytes") != value("go_memstats_heap_sys_bytes") ||
		value("go_memstats_mallocs_total")-value("go_memstats_frees_total") != value("go_memstats_heap_objects") {
		t.Errorf("sums: %s", w.Body)
	}
	for _, m := range runtimeMetrics {
		if len(strings.Fields(m.help)) < 4 || !strings.Contains(m.help, "/") {
			t.Errorf("%s: help %q", m.name, m.help)
		}
	}
}
