package stat

import (
	"encoding/json"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/control"
)

// counter declares a counter of a T, once for all that show it.
type counter[T any] struct {
	key    string   // in JSON: API. One in bytes ends in "bytes"
	column string   // of the table; "": not shown there
	metric *metric  // nil: none
	labels []string // of the metric, behind those that all counters of a T have
	of     func(*T) *uint64
}

// Direction is one half of a queue pair. Payload is counted by where it was written (rx) or lay
// (tx).
type Direction control.DirCounters

var (
	descPayload = queueDesc("payload_bytes_total",
		"Payload bytes of a queue, by the memory where they were written (rx) or lay (tx).", "domain")
	descEngine = desc("engine_bytes_total", "Bytes that GPU engines worked on.", "port", "operation")
)

// directionCounters are those of each half of a queue pair; control.DirCounters says what they are.
// The first is that of packets: a row without any is not shown.
var directionCounters = []counter[Direction]{
	{"packets", "PACKETS", queueDesc("packets_total", "Packets of a queue, as the guest saw or sent them."), nil,
		func(d *Direction) *uint64 { return &d.Packets }},
	{"segments", "", queueDesc("segments_total", "Packets of a queue, counted as packets of the wire's size."), nil,
		func(d *Direction) *uint64 { return &d.Segments }},
	{"header_bytes", "", queueDesc("header_bytes_total", "Header bytes of a queue."), nil,
		func(d *Direction) *uint64 { return &d.HeaderBytes }},
	{"device_bytes", "DEVICE", descPayload, []string{"device"}, func(d *Direction) *uint64 { return &d.DeviceBytes }},
	{"gpu_file_bytes", "GPU FILE", descPayload, []string{"gpu_file"},
		func(d *Direction) *uint64 { return &d.GPUFileBytes }},
	{"host_bytes", "HOST", descPayload, []string{"host"}, func(d *Direction) *uint64 { return &d.HostBytes }},
	{"bounced_bytes", "", queueDesc("bounced_bytes_total",
		"Payload bytes that went through host memory, as P2P was not possible."), nil,
		func(d *Direction) *uint64 { return &d.BouncedBytes }},
	{"drops", dropsColumn, queueDesc("queue_drops_total", "Packets of a queue that its port dropped."), nil,
		func(d *Direction) *uint64 { return &d.Drops }},
	{"dropped_bytes", "", queueDesc("queue_dropped_bytes_total",
		"Payload bytes of the packets that a queue's port dropped."), nil,
		func(d *Direction) *uint64 { return &d.DroppedBytes }},
}

// dropsColumn is where the table has the link's drops too.
const dropsColumn = "DROPS"

// bytes is all that went by.
func (d *Direction) bytes() uint64 {
	return d.HeaderBytes + d.DeviceBytes + d.GPUFileBytes + d.HostBytes
}

// EngineCounters are those of a NIC's GPU engines.
type EngineCounters struct {
	control.EngineCounters
	Reduced uint64
}

var engineCounters = []counter[EngineCounters]{
	{"jobs", "", desc("engine_jobs_total", "Jobs of the GPU engines that have ended.", "port"), nil,
		func(e *EngineCounters) *uint64 { return &e.Jobs }},
	{"failed", "", desc("engine_failed_jobs_total", "Jobs of the GPU engines that have ended with an error.", "port"), nil,
		func(e *EngineCounters) *uint64 { return &e.Failed }},
	{"gathered_bytes", "", descEngine, []string{"gather"}, func(e *EngineCounters) *uint64 { return &e.Gathered }},
	{"to_guest_bytes", "", descEngine, []string{"to_guest"}, func(e *EngineCounters) *uint64 { return &e.ToGuest }},
	{"from_guest_bytes", "", descEngine, []string{"from_guest"}, func(e *EngineCounters) *uint64 { return &e.FromGuest }},
	{"filled_bytes", "", descEngine, []string{"fill"}, func(e *EngineCounters) *uint64 { return &e.Filled }},
	{"hashed_bytes", "", descEngine, []string{"hash"}, func(e *EngineCounters) *uint64 { return &e.Hashed }},
	{"reduced_bytes", "", descEngine, []string{"reduce"}, func(e *EngineCounters) *uint64 { return &e.Reduced }},
}

// MarshalJSON implements json.Marshaler.
func (d Direction) MarshalJSON() ([]byte, error) { return marshal(directionCounters, &d) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Direction) UnmarshalJSON(b []byte) error { return unmarshal(directionCounters, d, b) }

// MarshalJSON implements json.Marshaler.
func (e EngineCounters) MarshalJSON() ([]byte, error) { return marshal(engineCounters, &e) }

// UnmarshalJSON implements json.Unmarshaler.
func (e *EngineCounters) UnmarshalJSON(b []byte) error { return unmarshal(engineCounters, e, b) }

// marshal writes counters in the order of their list.
func marshal[T any](list []counter[T], v *T) ([]byte, error) {
	b := []byte{'{'}
	for i, c := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, c.key), ':')
		b = strconv.AppendUint(b, *c.of(v), 10)
	}
	return append(b, '}'), nil
}

// unmarshal reads the counters that there are; another version may have others.
func unmarshal[T any](list []counter[T], v *T, b []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for _, c := range list {
		if raw := m[c.key]; raw != nil {
			if err := json.Unmarshal(raw, c.of(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

// countFunc adds a sample of a counter.
type countFunc func(m *metric, n uint64, labels ...string)

// collect gives the metrics of a T to count, with the labels that all of them have.
func collect[T any](list []counter[T], v *T, count countFunc, labels ...string) {
	for _, c := range list {
		if c.metric != nil {
			count(c.metric, *c.of(v), append(labels[:len(labels):len(labels)], c.labels...)...)
		}
	}
}

// cell is a counter's in the table: what it was before, and is now.
func (c *counter[T]) cell(t *table, before, now *T) string {
	if strings.HasSuffix(c.key, "bytes") {
		return t.bytes(*c.of(before), *c.of(now))
	}
	return t.count(*c.of(before), *c.of(now))
}
