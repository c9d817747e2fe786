package stat

import (
	"encoding/json"
	"strconv"
	"strings"

	"vnic.dev/vnic/internal/control"
)

// counter describes one counter of a T, for JSON, table and metrics.
type counter[T any] struct {
	key    string // in JSON, whose keys are API; ends in "bytes" if the counter counts bytes
	column string // in the table; "": not there
	metric string // "": none
	help   string
	labels []string // pairs of name and value
	value  func(*T) *uint64
}

// Direction has the counters of one half of a queue pair. Payload is counted by the memory to which it was
// written (rx) or in which it lay (tx).
type Direction control.DirCounters

const (
	payloadHelp = "Payload bytes of a queue, by the memory where they were written (rx) or lay (tx)."
	engineHelp  = "Bytes that GPU engines worked on."
)

// directionCounters are the counters of each half of a queue pair. The first counts packets.
var directionCounters = []counter[Direction]{
	{"packets", "PACKETS", "packets_total", "Packets of a queue, as the guest saw or sent them.", nil,
		func(d *Direction) *uint64 { return &d.Packets }},
	{"segments", "", "segments_total", "Packets of a queue, counted as packets of the wire's size.", nil,
		func(d *Direction) *uint64 { return &d.Segments }},
	{"header_bytes", "", "header_bytes_total", "Header bytes of a queue.", nil,
		func(d *Direction) *uint64 { return &d.HeaderBytes }},
	{"device_bytes", "DEVICE", "payload_bytes_total", payloadHelp, []string{"domain", "device"},
		func(d *Direction) *uint64 { return &d.DeviceBytes }},
	{"gpu_file_bytes", "GPU FILE", "payload_bytes_total", payloadHelp, []string{"domain", "gpu_file"},
		func(d *Direction) *uint64 { return &d.GPUFileBytes }},
	{"host_bytes", "HOST", "payload_bytes_total", payloadHelp, []string{"domain", "host"},
		func(d *Direction) *uint64 { return &d.HostBytes }},
	{"bounced_bytes", "", "bounced_bytes_total", "Payload bytes that went through host memory, as P2P was not possible.",
		nil, func(d *Direction) *uint64 { return &d.BouncedBytes }},
	{"drops", dropsColumn, "queue_drops_total", "Packets of a queue that its port dropped.", nil,
		func(d *Direction) *uint64 { return &d.Drops }},
	{"dropped_bytes", "", "queue_dropped_bytes_total", "Payload bytes of the packets that a queue's port dropped.", nil,
		func(d *Direction) *uint64 { return &d.DroppedBytes }},
}

const dropsColumn = "DROPS"

func (d *Direction) bytes() uint64 {
	return d.HeaderBytes + d.DeviceBytes + d.GPUFileBytes + d.HostBytes
}

// EngineCounters are the counters of a NIC's GPU engines.
type EngineCounters struct {
	control.EngineCounters
	Reduced uint64
}

var engineCounters = []counter[EngineCounters]{
	{"jobs", "", "engine_jobs_total", "Jobs of the GPU engines that have ended.", nil,
		func(e *EngineCounters) *uint64 { return &e.Jobs }},
	{"failed", "", "engine_failed_jobs_total", "Jobs of the GPU engines that have ended with an error.", nil,
		func(e *EngineCounters) *uint64 { return &e.Failed }},
	engineBytes("gathered_bytes", "gather", func(e *EngineCounters) *uint64 { return &e.Gathered }),
	engineBytes("to_guest_bytes", "to_guest", func(e *EngineCounters) *uint64 { return &e.ToGuest }),
	engineBytes("from_guest_bytes", "from_guest", func(e *EngineCounters) *uint64 { return &e.FromGuest }),
	engineBytes("filled_bytes", "fill", func(e *EngineCounters) *uint64 { return &e.Filled }),
	engineBytes("hashed_bytes", "hash", func(e *EngineCounters) *uint64 { return &e.Hashed }),
	engineBytes("reduced_bytes", "reduce", func(e *EngineCounters) *uint64 { return &e.Reduced }),
}

func engineBytes(key, operation string, value func(*EngineCounters) *uint64) counter[EngineCounters] {
	return counter[EngineCounters]{key, "", "engine_bytes_total", engineHelp, []string{"operation", operation}, value}
}

// MarshalJSON implements json.Marshaler.
func (d Direction) MarshalJSON() ([]byte, error) { return marshal(directionCounters, &d) }

// UnmarshalJSON implements json.Unmarshaler.
func (d *Direction) UnmarshalJSON(b []byte) error { return unmarshal(directionCounters, d, b) }

// MarshalJSON implements json.Marshaler.
func (e EngineCounters) MarshalJSON() ([]byte, error) { return marshal(engineCounters, &e) }

// UnmarshalJSON implements json.Unmarshaler.
func (e *EngineCounters) UnmarshalJSON(b []byte) error { return unmarshal(engineCounters, e, b) }

func marshal[T any](list []counter[T], v *T) ([]byte, error) {
	b := []byte{'{'}
	for i, c := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendQuote(b, c.key), ':')
		b = strconv.AppendUint(b, *c.value(v), 10)
	}
	return append(b, '}'), nil
}

// unmarshal sets the counters of v that the JSON object b contains, and ignores other keys.
func unmarshal[T any](list []counter[T], v *T, b []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		return err
	}
	for _, c := range list {
		if raw := m[c.key]; raw != nil {
			if err := json.Unmarshal(raw, c.value(v)); err != nil {
				return err
			}
		}
	}
	return nil
}

// collect calls count for each counter of list that has a metric, with its value in v and labels before its own.
func collect[T any](list []counter[T], v *T, count countFunc, labels ...string) {
	for _, c := range list {
		if c.metric != "" {
			count(c.metric, c.help, *c.value(v), append(labels[:len(labels):len(labels)], c.labels...)...)
		}
	}
}

func (c *counter[T]) cell(t *table, before, now *T) string {
	if strings.HasSuffix(c.key, "bytes") {
		return t.bytes(*c.value(before), *c.value(now))
	}
	return t.count(*c.value(before), *c.value(now))
}
