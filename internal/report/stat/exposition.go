package stat

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// expositionType is the Content-Type of the text. vnic's metric names have no characters that would be escaped.
const expositionType = "text/plain; version=0.0.4; charset=utf-8; escaping=underscores"

// exposition collects samples, and writes them in Prometheus's text format 0.0.4
// (https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format), in client_golang's order.
type exposition struct {
	families map[string]*family // by name
}

type family struct {
	name, help, kind string
	labels           []string // names, sorted
	order            []int    // for each of labels, the index of its value in add's parameter labels
	samples          []sample
}

type sample struct {
	suffix string   // "", "_sum" or "_count"
	labels []string // values, in the order of the family's labels; nil for _sum and _count
	value  float64
}

// add adds a sample of a metric: of a counter if its name ends in _total, else of a gauge. labels has pairs of a name
// and a value, with the same names in the same order for each sample of the metric. Of samples with the same label
// values text writes only the first, except in a summary.
func (x *exposition) add(name, help string, value float64, labels ...string) *family {
	f := x.families[name]
	if f == nil {
		f = &family{name: name, help: help, kind: "gauge"}
		if strings.HasSuffix(name, "_total") {
			f.kind = "counter"
		}
		for i := 0; i < len(labels); i += 2 {
			f.order = append(f.order, i+1)
		}
		slices.SortFunc(f.order, func(a, b int) int { return strings.Compare(labels[a-1], labels[b-1]) })
		for _, i := range f.order {
			f.labels = append(f.labels, labels[i-1])
		}
		if x.families == nil {
			x.families = map[string]*family{}
		}
		x.families[name] = f
	}
	s := sample{value: value, labels: make([]string, len(f.order))}
	for i, place := range f.order {
		s.labels[i] = strings.ToValidUTF8(labels[place], "\uFFFD")
	}
	f.samples = append(f.samples, s)
	return f
}

// summarize adds a summary without labels besides quantile. quantiles has at least two values, for quantiles from 0 to
// 1 at equal distances.
func (x *exposition) summarize(name, help string, quantiles []time.Duration, sum time.Duration, count int64) {
	var f *family
	for i, v := range quantiles {
		f = x.add(name, help, v.Seconds(), "quantile", number(float64(i)/float64(len(quantiles)-1)))
	}
	f.kind = summary
	f.samples = append(f.samples, sample{suffix: "_sum", value: sum.Seconds()},
		sample{suffix: "_count", value: float64(count)})
}

const summary = "summary"

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
	b = append(b, "# HELP "+f.name+" "+helpEscapes.Replace(f.help)+"\n# TYPE "+f.name+" "+f.kind+"\n"...)
	samples := f.samples
	if f.kind != summary {
		slices.SortStableFunc(samples, func(a, b sample) int { return slices.Compare(a.labels, b.labels) })
		samples = slices.CompactFunc(samples, func(a, b sample) bool { return slices.Equal(a.labels, b.labels) })
	}
	for _, s := range samples {
		b = append(b, f.name+s.suffix...)
		for i, value := range s.labels {
			b = append(b, "{,"[min(i, 1)])
			b = append(b, f.labels[i]+`="`+valueEscapes.Replace(value)+`"`...)
		}
		if len(s.labels) > 0 {
			b = append(b, '}')
		}
		b = append(b, " "+number(s.value)+"\n"...)
	}
	return b
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
