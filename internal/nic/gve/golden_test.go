package gve

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/golden"
	"vnic.dev/vnic/vfiouser"
)

// recorder writes down registers, and for each watched admin command its slot and the other memory that has changed.
type recorder struct {
	*ctl
	b      strings.Builder
	passed map[uint32]bool // by opcode: a watched command has passed
}

// watched is how many bytes of memory a recorder watches.
const watched = 1 << 20

func newRecorder(t *testing.T, pairs int) *recorder {
	return &recorder{ctl: newCtl(t, queues(pairs)), passed: make(map[uint32]bool)}
}

func (r *recorder) say(what string, args ...any) { fmt.Fprintf(&r.b, "\n# "+what+"\n", args...) }

// dump writes bytes in lines of 32, without lines of zeros.
func (r *recorder) dump(addr uint64, b []byte) {
	for i, line := 0, []byte(nil); i < len(b); i += len(line) {
		line = b[i:min(i+32, len(b))]
		if bytes.Trim(line, "\x00") == nil {
			continue
		}
		var words []string
		for w := range slices.Chunk(line, 4) {
			words = append(words, hex.EncodeToString(w))
		}
		fmt.Fprintf(&r.b, "  %06x: %s\n", addr+uint64(i), strings.Join(words, " "))
	}
}

func (r *recorder) registers(when string) {
	r.Helper()
	r.say("registers %s", when)
	b := make([]byte, 64)
	r.OK(r.dev.ReadRegion(registersBAR, 0, b))
	r.dump(0, b)
}

// reply allocates memory for a reply, filled with the byte 0xee.
func (r *recorder) reply(n int) uint64 {
	addr := r.alloc(n)
	copy(r.bytes(addr, n), bytes.Repeat([]byte{0xee}, n))
	return addr
}

// watch runs admin commands by do, and writes down their slots, do's status, and the other changes of memory.
func (r *recorder) watch(what string, do func() status) {
	r.Helper()
	r.say("%s", what)
	from := r.count
	before := bytes.Clone(r.RAM[:watched])
	used := r.Next
	st := do()
	if r.Next > watched {
		r.Fatalf("%#x bytes of memory are used, %#x watched", r.Next, watched)
	}
	slots := r.bytes(r.ring, int(r.slots)*slotLen)
	for n := from; n != r.count; n++ {
		off := uint64(n % r.slots * slotLen)
		if status(be.Uint32(slots[off+slotStatus:])) == statusPassed {
			r.passed[be.Uint32(slots[off:])] = true
		}
		r.dump(r.ring-ctlBase+off, slots[off:][:slotLen])
	}
	fmt.Fprintf(&r.b, "  status %08x: %v\n", uint32(st), st)
	for i := uint64(0); i < r.Next; {
		if in := i >= r.ring-ctlBase && i < r.ring-ctlBase+uint64(len(slots)); in || r.RAM[i] == before[i] {
			i++
			continue
		}
		end := i + 1
		for k := end; k < min(end+64, r.Next); k++ {
			if r.RAM[k] != before[k] {
				end = k + 1
			}
		}
		i &^= 3
		end = (end + 3) &^ 3
		what := "written"
		if i >= used-used%4096 && i >= used {
			what = "given and written" // the driver passed this memory with the command
		}
		fmt.Fprintf(&r.b, "  %s, %d bytes\n", what, end-i)
		r.dump(i, r.RAM[i:end])
		i = end
	}
}

// give watches one command, which refers only to memory that is allocated already.
func (r *recorder) give(what string, op uint32, vs ...any) {
	r.Helper()
	r.watch(what, func() status { return r.command(op, vs...) })
}

// A driver sees the recorded registers, commands and replies.
func TestGolden(t *testing.T) {
	golden.Check(t, "testdata/golden", map[string]string{
		"pci":         goldenPCI(t),
		"admin":       goldenAdmin(t),
		"refusals":    goldenRefusals(t),
		"descriptors": goldenDescriptors(),
		"timestamps":  goldenTimestamps(t),
	})
}

func goldenPCI(t *testing.T) string {
	r := newRecorder(t, 4)
	r.b.WriteString("# What vfio-user shows of a NIC with 4 queue pairs\n")
	info := r.dev.Info()
	for i, x := range info.Regions {
		if x.Size != 0 {
			fmt.Fprintf(&r.b, "region %d: %d bytes\n", i, x.Size)
		}
	}
	for i, x := range info.IRQs {
		if x.Count != 0 {
			fmt.Fprintf(&r.b, "interrupts %d: %d\n", i, x.Count)
		}
	}
	fmt.Fprintf(&r.b, "reset: %v\n", info.Reset)
	r.say("configuration space")
	config := make([]byte, info.Regions[vfiouser.RegionConfig].Size)
	r.OK(r.dev.ReadRegion(vfiouser.RegionConfig, 0, config))
	r.dump(0, config)
	return r.b.String()
}

func (r *recorder) handshake() {
	r.registers("at first")
	r.start()
	r.registers("when it runs")
	r.watch("VERIFY_DRIVER_COMPATIBILITY", func() status {
		return r.command(opVerifyDriver, uint64(driverInfoLen), r.Put(driverInfo()))
	})
	to := r.reply(4096)
	r.give("DESCRIBE_DEVICE", opDescribeDevice, to, uint32(1), uint32(4096))
}

func goldenAdmin(t *testing.T) string {
	r := newRecorder(t, 2)
	r.b.WriteString("# The life of a driver of a NIC with 2 queue pairs\n")
	r.handshake()
	r.watch("CONFIGURE_DEVICE_RESOURCES: 4 notification blocks", func() status { r.configure(4); return statusPassed })
	types := r.reply(2048)
	r.give("GET_PTYPE_MAP", opGetPtypeMap, uint64(2048), types)
	for i := range 2 {
		r.watch(fmt.Sprint("CREATE_TX_QUEUE ", i), func() status { return r.command(opCreateTx, r.txCreate(i)) })
		rx := func() status { return r.command(opCreateRx, r.rxCreate(i, 256)) }
		r.watch(fmt.Sprint("CREATE_RX_QUEUE ", i), rx)
	}
	speed := r.reply(8)
	r.give("REPORT_LINK_SPEED", opReportLinkSpeed, speed)
	r.registers("with queues")

	rss := r.reply(4096)
	r.give("QUERY_RSS", opQueryRSS, uint64(4096), rss)
	key := make([]byte, rssKeyLen)
	for i := range key {
		key[i] = byte(i + 1)
	}
	table := make([]uint32, rssTableLen)
	for i := range table {
		table[i] = uint32(i/3) % 2
	}
	r.watch("CONFIGURE_RSS", func() status { return r.rss(0xd7, rssToeplitz, key, table) })
	rss = r.reply(4096)
	r.give("QUERY_RSS, of what was configured", opQueryRSS, uint64(4096), rss)

	v4, v6 := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00:1:2:3:4:5:6:7")
	for i, x := range []control.FlowRule{
		{Proto: 6, Src: v4, Dst: netip.MustParseAddr("10.0.0.1"), SrcPort: 1000, DstPort: 2000, Queue: 1},
		{Proto: 17, IPv6: true, Src: v6, SrcPort: 53, Queue: 0},
	} {
		var fr flowRule
		fr.set(&x)
		r.watch(fmt.Sprintf("CONFIGURE_FLOW_RULE: add, place %d", 511-i), func() status {
			return r.flow(flowAdd, fr, uint32(511-i))
		})
	}
	for _, what := range []uint16{queryRules, queryIDs, queryStats} {
		to := r.reply(4096)
		r.give(fmt.Sprintf("QUERY_FLOW_RULES %d", what), opQueryFlowRules, what, uint16(0), uint32(0), uint64(4096), to)
	}
	r.watch("CONFIGURE_FLOW_RULE: delete, place 511", func() status { return r.flow(flowDel, flowRule{}, 511) })

	r.stats()
	r.give("REPORT_STATS: no more", opReportStats, uint64(0), uint64(0), uint64(20000))
	r.give("DESTROY_RX_QUEUE 1", opDestroyRx, uint32(1))
	r.give("DESTROY_TX_QUEUE 1", opDestroyTx, uint32(1))
	r.give("DECONFIGURE_DEVICE_RESOURCES", opDeconfigure)
	r.reset()
	r.registers("after a reset")
	for op := range commands {
		if !r.passed[op] && op != opReportTime { // another golden file has it
			t.Errorf("no golden file has a %s that passed", commandName(op))
		}
	}
	return r.b.String()
}

// stats writes down REPORT_STATS and a report, which it makes itself, as the device's reports come at any time.
func (r *recorder) stats() {
	r.Helper()
	const room = statsHeadLen + 20*statLen
	addr := r.alloc(room)
	cmd := words(uint64(room), addr, uint64(1<<40))
	r.pass(opReportStats, cmd)
	r.say("REPORT_STATS, and what is reported")
	slot := uint64((r.count - 1) % r.slots * slotLen)
	r.dump(r.ring-ctlBase+slot, r.bytes(r.ring+slot, slotLen))
	s := &r.dev.stats
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(r.bytes(addr, room))
	s.put()
	r.dump(addr-ctlBase, r.bytes(addr, room))
}

// goldenTimestamps records what a driver sees only on a NIC with timestamps.
func goldenTimestamps(t *testing.T) string {
	r := &recorder{ctl: newCtl(t, Options{Queues: 1, Timestamps: true}), passed: make(map[uint32]bool)}
	r.dev.common.clock = func() int64 { return 0x0102030405060708 }
	r.b.WriteString("# A NIC with timestamps\n")
	r.start()
	to := r.reply(4096)
	r.give("DESCRIBE_DEVICE", opDescribeDevice, to, uint32(1), uint32(4096))
	to = r.reply(nicTimeLen)
	r.give("REPORT_NIC_TIMESTAMP", opReportTime, uint64(nicTimeLen), to)
	if !r.passed[opReportTime] {
		t.Error("REPORT_NIC_TIMESTAMP did not pass")
	}
	var b [rxComplLen]byte
	c := rxCompl{stamped: true, stamp: 0x0a0b0c0d}
	c.encode(b[:])
	fmt.Fprintf(&r.b, "\n# receive completion: timestamp 0x0a0b0c0d\n%x\n", b)
	return r.b.String()
}

func goldenRefusals(t *testing.T) string {
	r := newRecorder(t, 2)
	r.b.WriteString("# What is refused, and with which status\n")
	r.start()
	to := r.alloc(4096)
	for _, x := range []struct {
		what string
		op   uint32
		b    *body
	}{
		{"no such command", 0x3, new(body)},
		{"DESCRIBE_DEVICE of another version", opDescribeDevice, words(to, uint32(2), uint32(4096))},
		{"DESCRIBE_DEVICE in no room", opDescribeDevice, words(to, uint32(1), uint32(8))},
		{"DESCRIBE_DEVICE where no memory is", opDescribeDevice, words(uint64(1), uint32(1), uint32(4096))},
		{"VERIFY_DRIVER_COMPATIBILITY of another length", opVerifyDriver, words(uint64(1), to)},
		{"VERIFY_DRIVER_COMPATIBILITY of a driver without DQO-RDA", opVerifyDriver, words(uint64(driverInfoLen), to)},
		{"CONFIGURE_DEVICE_RESOURCES of another format", opConfigureResources,
			words(uint64(0), to, uint32(0), uint32(4), uint32(64))},
		{"CREATE_TX_QUEUE before resources", opCreateTx, new(body)},
		{"CREATE_RX_QUEUE before resources", opCreateRx, new(body)},
		{"DESTROY_TX_QUEUE that is not", opDestroyTx, words(uint32(1))},
		{"DESTROY_RX_QUEUE that is not", opDestroyRx, words(uint32(9))},
		{"GET_PTYPE_MAP of another length", opGetPtypeMap, words(uint64(2), to)},
		{"REPORT_STATS of no length", opReportStats, words(uint64(1), to, uint64(1))},
		{"QUERY_RSS in no room", opQueryRSS, words(uint64(1), to)},
		{"CONFIGURE_RSS of another key", opConfigureRSS,
			words(uint16(1), uint16(0x100), uint16(1), uint16(0), to, uint64(0))},
		{"QUERY_FLOW_RULES of another kind", opQueryFlowRules, words(uint16(9), uint16(0), uint32(0), uint64(4096), to)},
		{"an extended command that is none", opExtended, words(uint32(0x999), uint32(8), to)},
	} {
		r.watch(x.what, func() status { return r.command(x.op, x.b) })
	}
	r.registers("then")
	return r.b.String()
}

// goldenDescriptors records layouts of descriptors with a different value in each field.
func goldenDescriptors() string {
	var b strings.Builder
	b.WriteString("# Descriptors; see TestLayouts for the others\n")
	var post [rxBufLen]byte
	buf := rxBuf{0x0102, 0x1112131415161718, 0x2122232425262728}
	buf.encode(&post)
	fmt.Fprintf(&b, "\n# receive buffer: id 0x0102, data 0x1112131415161718, header 0x2122232425262728\n%x\n", post)
	for _, x := range []struct {
		what string
		word uint32
	}{
		{"packet done, tag 0x1234, queue 5", txComplWord(5, txPacketDone, 0x1234)},
		{"descriptors done, head 0x123, queue 5", txComplWord(5, txDescDone, 0x123)},
	} {
		fmt.Fprintf(&b, "\n# transmit completion: %s\n%x\n", x.what, le.AppendUint32(nil, x.word))
	}
	return b.String()
}
