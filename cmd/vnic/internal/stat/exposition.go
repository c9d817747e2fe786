package stat

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// expositionType is the Content-Type of an exposition. All versions of Prometheus take our names: none is escaped.
const expositionType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"

// metric is what Prometheus knows of a metric: a family of samples, one for each combination of labels.
type metric struct {
	name, help string
	labels     []string
	summary    bool // else its name says whether it is a counter
}

// kind is the metric's type.
func (m *metric) kind() string {
	switch {
	case m.summary:
		return "summary"
	case strings.HasSuffix(m.name, "_total"):
		return "counter"
	}
	return "gauge"
}

// exposition collects samples, and writes them in Prometheus's text format, version 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format). The order is that of
// client_golang's: families by name, labels by name, samples by the labels' values.
type exposition struct {
	families map[string]*family // by the metric's name
}

type family struct {
	*metric
	order   []int // of the labels, by name
	samples []sample
}

type sample struct {
	suffix string   // of the name
	labels []string // values, in the family's order
	value  float64
}

// add adds a sample, with a value for each of the metric's labels. Of two with the same values the first counts.
func (x *exposition) add(m *metric, value float64, labels ...string) {
	f := x.family(m)
	s := sample{value: value, labels: make([]string, len(f.order))}
	for i, at := range f.order {
		s.labels[i] = strings.ToValidUTF8(labels[at], "\uFFFD")
	}
	f.samples = append(f.samples, s)
}

// summarize adds a summary without labels: quantiles from least to most, the sum and the count of what was observed.
func (x *exposition) summarize(m *metric, quantiles []float64, sum float64, count int64) {
	for i, v := range quantiles {
		x.add(m, v, number(float64(i)/float64(len(quantiles)-1)))
	}
	f := x.family(m)
	f.samples = append(f.samples, sample{suffix: "_sum", value: sum}, sample{suffix: "_count", value: float64(count)})
}

func (x *exposition) family(m *metric) *family {
	f := x.families[m.name]
	if f == nil {
		f = &family{metric: m}
		for i := range m.labels {
			f.order = append(f.order, i)
		}
		slices.SortFunc(f.order, func(a, b int) int { return strings.Compare(m.labels[a], m.labels[b]) })
		if x.families == nil {
			x.families = map[string]*family{}
		}
		x.families[m.name] = f
	}
	return f
}

// text writes all families.
func (x *exposition) text() []byte {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(x.families)) {
		b = x.families[name].append(b)
	}
	return b
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	valueEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func (f *family) append(b []byte) []byte {
	b = append(b, "# HELP "+f.name+" "+helpEscapes.Replace(f.help)+"\n# TYPE "+f.name+" "+f.kind()+"\n"...)
	samples := f.samples
	if !f.summary {
		slices.SortStableFunc(samples, func(a, b sample) int { return slices.Compare(a.labels, b.labels) })
		samples = slices.CompactFunc(samples, func(a, b sample) bool { return slices.Equal(a.labels, b.labels) })
	}
	for _, s := range samples {
		b = append(b, f.name+s.suffix...)
		for i, value := range s.labels {
			b = append(b, "{,"[min(i, 1)])
			b = append(b, f.metric.labels[f.order[i]]+`="`+valueEscapes.Replace(value)+`"`...)
		}
		if len(s.labels) > 0 {
			b = append(b, '}')
		}
		b = append(b, " "+number(s.value)+"\n"...)
	}
	return b
}

// number is as client_golang writes it: NaN, +Inf and -Inf are Prometheus's words, too.
func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
