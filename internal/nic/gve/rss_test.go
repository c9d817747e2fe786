package gve

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"vnic.dev/vnic/internal/control"
	"vnic.dev/vnic/internal/testkit"
)

// rss sends CONFIGURE_RSS, and returns its status. Types 0, alg 0 and a nil key or table mean no change.
func (c *ctl) rss(types uint16, alg uint8, key []byte, table []uint32) status {
	c.Helper()
	cmd := rssCommand{Types: types, Alg: alg, KeyLen: uint16(len(key)), TableLen: uint16(len(table))}
	if key != nil {
		cmd.KeyAddr = c.Put(key)
	}
	if table != nil {
		b, err := binary.Append(nil, be, table)
		c.OK(err)
		cmd.TableAddr = c.Put(b)
	}
	return c.command(opConfigureRSS, cmd)
}

// queryRSS sends QUERY_RSS as the driver does (gve_adminq_query_rss_config), and returns the reply.
func (c *ctl) queryRSS() (types uint16, key []byte, table []uint16) {
	c.Helper()
	to := c.alloc(4096)
	c.pass(opQueryRSS, uint64(4096), to)
	b := c.bytes(to, 8+40+4*128)
	if be.Uint32(b) != uint32(len(b)) || b[6] != 1 || b[7] != 0 {
		c.Fatalf("reply %x", b[:8])
	}
	for i := range 128 {
		table = append(table, uint16(be.Uint32(b[48+4*i:])))
	}
	return be.Uint16(b[4:]), b[8:48], table
}

func (c *ctl) tableIs(when string, want []uint16) {
	c.Helper()
	if _, _, table := c.queryRSS(); !slices.Equal(table, want) {
		c.Errorf("%s: table %d, not %d", when, table, want)
	}
}

func spreadOver(n int) (table []uint16) {
	for i := range 128 {
		table = append(table, uint16(i%n))
	}
	return table
}

// Invariant: nic/gve: Flow rules and RSS of the admin queue are the port's, and QUERY_RSS returns
// what is used.
func TestRSS(t *testing.T) {
	c := newConfigured(t, 4)
	c.tableIs("table without queues", spreadOver(1))
	for i := range 4 {
		c.pass(opCreateRx, c.rxCreate(i, 0))
	}
	types, key, table := c.queryRSS()
	if !slices.Equal(table, spreadOver(4)) {
		t.Errorf("table at first %d", table)
	}
	testkit.Equal(t, "hash types at first", types, 0xd7)
	// A queue that the driver restarts keeps its entries in the table.
	c.pass(opDestroyRx, uint32(3))
	c.pass(opCreateRx, c.rxCreate(3, 0))
	c.tableIs("table after a restart", table)
	// The driver uses fewer queues (ethtool -L), and then more again.
	for _, n := range []int{2, 4} {
		for i := range uint32(4) {
			if c.dev.res.rx[i].live {
				c.pass(opDestroyRx, i)
			}
		}
		for i := range n {
			c.pass(opCreateRx, c.rxCreate(i, 0))
		}
		c.tableIs(fmt.Sprint(n, " queues"), spreadOver(n))
	}
	// A table that the driver has set stays when a queue is restarted. A command changes only the parameters that it has.
	indices := make([]uint32, 128)
	for i := range indices {
		indices[i] = uint32(i / 64)
	}
	testkit.Equal(t, "RSS", c.rss(0x92, 1, nil, indices), statusPassed)
	other := bytes.Repeat([]byte{7, 1}, 20)
	testkit.Equal(t, "RSS", c.rss(0, 0, other, nil), statusPassed)
	check := func() {
		t.Helper()
		types, key, table = c.queryRSS()
		if types != 0x92 || !bytes.Equal(key, other) || table[63] != 0 || table[64] != 1 || table[127] != 1 {
			t.Errorf("types %#x, key %x, table %d", types, key, table)
		}
		r, err := c.dev.port.RSS()
		c.OK(err)
		if r.HashTypes != control.HashTCPv4|control.HashTCPv6|control.HashUDPv6 || !bytes.Equal(r.Key[:], other) ||
			!slices.Equal(r.Table, table) {
			t.Errorf("the port has %+v", r)
		}
	}
	check()
	c.pass(opDestroyRx, uint32(0))
	c.pass(opCreateRx, c.rxCreate(0, 0))
	check()
	// QUERY_RSS repeats a shorter table, set by the control channel, to 128 entries.
	r, err := c.dev.port.RSS()
	c.OK(err)
	r.Table = []uint16{3, 2, 1, 3}
	c.OK(c.dev.port.SetRSS(r))
	if _, _, table = c.queryRSS(); !slices.Equal(table[:8], []uint16{3, 2, 1, 3, 3, 2, 1, 3}) || table[127] != 3 {
		t.Errorf("a short table: %d", table)
	}
	r.Table = make([]uint16, 256)
	if c.dev.port.SetRSS(r) == nil {
		t.Error("a table was set that the driver cannot be told")
	}
	c.reset()
	c.up(0)
	c.tableIs("table after reset", spreadOver(4))
}

func TestRSSRefusals(t *testing.T) {
	c := newUp(t, 2, 0)
	before, _ := c.dev.port.RSS()
	bad := make([]uint32, 128)
	bad[127] = 2
	for name, x := range map[string]struct {
		got, want status
	}{
		"algorithm": {c.rss(0, 2, nil, nil), statusUnimplemented},
		"types":     {c.rss(1<<9, 1, nil, nil), statusInvalidArgument},
		"key":       {c.rss(0, 1, make([]byte, 39), nil), statusInvalidArgument},
		"table":     {c.rss(0, 1, nil, make([]uint32, 64)), statusInvalidArgument},
		"queue":     {c.rss(0, 1, make([]byte, 40), bad), statusInvalidArgument},
		"key away": {c.command(opConfigureRSS, uint16(0), uint8(1), uint8(0), uint16(40), uint16(0),
			uint64(0xdead000)), statusInvalidArgument},
		"table away": {c.command(opConfigureRSS, uint16(0), uint8(1), uint8(0), uint16(0), uint16(128), uint64(0),
			uint64(0xdead000)), statusInvalidArgument},
		"room":    {c.command(opQueryRSS, uint64(559), c.alloc(4096)), statusResourceExhausted},
		"nowhere": {c.command(opQueryRSS, uint64(560), uint64(0xdead000)), statusInvalidArgument},
	} {
		testkit.Equal(t, name, x.got, x.want)
	}
	after, _ := c.dev.port.RSS()
	if before.HashTypes != after.HashTypes || before.Key != after.Key || !slices.Equal(before.Table, after.Table) {
		t.Error("a command that was refused changed something")
	}
}
