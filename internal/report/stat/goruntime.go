package stat

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strings"
	"time"
)

// runtimeMetric is a metric whose value is the sum of metrics of package runtime/metrics (sources).
type runtimeMetric struct {
	name, help string
	sources    []string
}

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
	// ":byte" is a mistake in client_golang's help, to which this help is equal.
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

func memStats(name, help string, sources ...string) runtimeMetric {
	const equals = " Equals to "
	if !strings.Contains(help, equals) {
		help += equals + strings.Join(sources, " + ") + "."
	}
	return runtimeMetric{"go_memstats_" + name, help, sources}
}

func sourced(name, source string) runtimeMetric {
	all := metrics.All()
	help := ""
	if i := slices.IndexFunc(all, func(d metrics.Description) bool { return d.Name == source }); i >= 0 {
		help = all[i].Description + " Sourced from " + source + "."
	}
	return runtimeMetric{name, help, []string{source}}
}

// collectGo adds metrics of Go's runtime with client_golang's names and helps, so that dashboards made for these work.
func collectGo(x *exposition) {
	x.add("go_info", "Information about the Go environment.", 1, "version", runtime.Version())
	x.add("go_goroutines", "Number of goroutines that currently exist.", float64(runtime.NumGoroutine()))
	threads, _ := runtime.ThreadCreateProfile(nil)
	x.add("go_threads", "Number of OS threads created.", float64(threads))

	pauses := debug.GCStats{PauseQuantiles: make([]time.Duration, 5)}
	debug.ReadGCStats(&pauses)
	x.summarize("go_gc_duration_seconds",
		"A summary of the wall-time pause (stop-the-world) duration in garbage collection cycles.", pauses.PauseQuantiles,
		pauses.PauseTotal, pauses.NumGC)
	x.add("go_memstats_last_gc_time_seconds", "Number of seconds since 1970 of last garbage collection.",
		float64(pauses.LastGC.UnixNano())/1e9)

	var samples []metrics.Sample // of all metrics, for one call of Read
	for _, m := range runtimeMetrics {
		for _, name := range m.sources {
			samples = append(samples, metrics.Sample{Name: name})
		}
	}
	metrics.Read(samples)
	for _, m := range runtimeMetrics {
		sum := uint64(0)
		for _, s := range samples[:len(m.sources)] {
			if s.Value.Kind() == metrics.KindUint64 { // else this version of Go lacks the metric
				sum += s.Value.Uint64()
			}
		}
		samples = samples[len(m.sources):]
		x.add(m.name, m.help, float64(sum))
	}
}
