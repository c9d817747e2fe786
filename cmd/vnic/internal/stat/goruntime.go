package stat

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"
)

// The metrics of Go's runtime, with the names and helps of client_golang's, for which there are dashboards.
var (
	goInfo       = metric{name: "go_info", help: "Information about the Go environment.", labels: []string{"version"}}
	goGoroutines = metric{name: "go_goroutines", help: "Number of goroutines that currently exist."}
	goThreads    = metric{name: "go_threads", help: "Number of OS threads created."}
	goPauses     = metric{name: "go_gc_duration_seconds", labels: []string{"quantile"}, summary: true,
		help: "A summary of the wall-time pause (stop-the-world) duration in garbage collection cycles."}
	goLastGC = metric{name: "go_memstats_last_gc_time_seconds",
		help: "Number of seconds since 1970 of last garbage collection."}
)

// runtimeMetric is the sum of some of package runtime/metrics.
type runtimeMetric struct {
	metric
	of []string
}

// Names of package runtime/metrics.
const (
	heapObjects  = "/memory/classes/heap/objects:bytes"
	heapUnused   = "/memory/classes/heap/unused:bytes"
	heapReleased = "/memory/classes/heap/released:bytes"
	heapFree     = "/memory/classes/heap/free:bytes"
	heapStacks   = "/memory/classes/heap/stacks:bytes"
	mspanInUse   = "/memory/classes/metadata/mspan/inuse:bytes"
	mcacheInUse  = "/memory/classes/metadata/mcache/inuse:bytes"
	tinyAllocs   = "/gc/heap/tiny/allocs:objects"
)

var runtimeMetrics = []runtimeMetric{
	memStats("alloc_bytes", "Number of bytes allocated in heap and currently in use.", heapObjects),
	memStats("alloc_bytes_total", "Total number of bytes allocated in heap until now, even if released already.",
		"/gc/heap/allocs:bytes"),
	// What it equals is misspelt, in client_golang, and stays so: a help is what users see.
	memStats("sys_bytes", "Number of bytes obtained from system. Equals to /memory/classes/total:byte.",
		"/memory/classes/total:bytes"),
	memStats("mallocs_total", "Total number of heap objects allocated, both live and gc-ed. Semantically a counter "+
		"version for go_memstats_heap_objects gauge.", "/gc/heap/allocs:objects", tinyAllocs),
	memStats("frees_total", "Total number of heap objects frees.", "/gc/heap/frees:objects", tinyAllocs),
	memStats("heap_alloc_bytes", "Number of heap bytes allocated and currently in use, same as "+
		"go_memstats_alloc_bytes.", heapObjects),
	memStats("heap_sys_bytes", "Number of heap bytes obtained from system.", heapObjects, heapUnused, heapReleased,
		heapFree),
	memStats("heap_idle_bytes", "Number of heap bytes waiting to be used.", heapReleased, heapFree),
	memStats("heap_inuse_bytes", "Number of heap bytes that are in use. Equals to "+heapObjects+" + "+heapUnused,
		heapObjects, heapUnused),
	memStats("heap_released_bytes", "Number of heap bytes released to OS.", heapReleased),
	memStats("heap_objects", "Number of currently allocated objects.", "/gc/heap/objects:objects"),
	memStats("stack_inuse_bytes", "Number of bytes obtained from system for stack allocator in non-CGO environments.",
		heapStacks),
	memStats("stack_sys_bytes", "Number of bytes obtained from system for stack allocator.", heapStacks,
		"/memory/classes/os-stacks:bytes"),
	memStats("mspan_inuse_bytes", "Number of bytes in use by mspan structures.", mspanInUse),
	memStats("mspan_sys_bytes", "Number of bytes used for mspan structures obtained from system.", mspanInUse,
		"/memory/classes/metadata/mspan/free:bytes"),
	memStats("mcache_inuse_bytes", "Number of bytes in use by mcache structures.", mcacheInUse),
	memStats("mcache_sys_bytes", "Number of bytes used for mcache structures obtained from system.", mcacheInUse,
		"/memory/classes/metadata/mcache/free:bytes"),
	memStats("buck_hash_sys_bytes", "Number of bytes used by the profiling bucket hash table.",
		"/memory/classes/profiling/buckets:bytes"),
	memStats("gc_sys_bytes", "Number of bytes used for garbage collection system metadata.",
		"/memory/classes/metadata/other:bytes"),
	memStats("other_sys_bytes", "Number of bytes used for other system allocations.", "/memory/classes/other:bytes"),
	memStats("next_gc_bytes", "Number of heap bytes when next garbage collection will take place.",
		"/gc/heap/goal:bytes"),
	sourced("go_gc_gogc_percent", "/gc/gogc:percent"),
	sourced("go_gc_gomemlimit_bytes", "/gc/gomemlimit:bytes"),
	sourced("go_sched_gomaxprocs_threads", "/sched/gomaxprocs:threads"),
}

// memStats is one that runtime.MemStats had.
func memStats(name, help string, of ...string) runtimeMetric {
	const equals = " Equals to "
	if !strings.Contains(help, equals) {
		help += equals + strings.Join(of, " + ") + "."
	}
	return runtimeMetric{metric{name: "go_memstats_" + name, help: help}, of}
}

// sourced is one whose help is Go's.
func sourced(name, of string) runtimeMetric {
	help := ""
	for _, d := range metrics.All() {
		if d.Name == of {
			help = d.Description + " Sourced from " + of + "."
		}
	}
	return runtimeMetric{metric{name: name, help: help}, []string{of}}
}

// collectGo adds the metrics of Go's runtime.
func collectGo(x *exposition) {
	x.add(&goInfo, 1, runtime.Version())
	x.add(&goGoroutines, float64(runtime.NumGoroutine()))
	threads, _ := runtime.ThreadCreateProfile(nil)
	x.add(&goThreads, float64(threads))

	pauses := debug.GCStats{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats(&pauses)
	var quantiles []float64
	for _, q := range pauses.PauseQuantiles {
		quantiles = append(quantiles, q.Seconds())
	}
	x.summarize(&goPauses, quantiles, pauses.PauseTotal.Seconds(), pauses.NumGC)
	x.add(&goLastGC, float64(pauses.LastGC.UnixNano())/1e9)

	var samples []metrics.Sample // all at one moment
	for _, m := range runtimeMetrics {
		for _, name := range m.of {
			samples = append(samples, metrics.Sample{Name: name})
		}
	}
	metrics.Read(samples)
	for i := range runtimeMetrics {
		m := &runtimeMetrics[i]
		sum := uint64(0)
		for _, s := range samples[:len(m.of)] {
			if s.Value.Kind() == metrics.KindUint64 { // else this version of Go has no such metric
				sum += s.Value.Uint64()
			}
		}
		samples = samples[len(m.of):]
		x.add(&m.metric, float64(sum))
	}
}
