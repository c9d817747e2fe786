package gve

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"vnic.dev/vnic/vfiouser"
)

// FuzzDevice plays a hostile driver and frontend: each 17 bytes are an operation, its kind and 16 bytes of arguments.
//
// Invariant: nic/gve: No driver and no frontend makes the device panic or hang.
func FuzzDevice(f *testing.F) {
	op := func(kind byte, vs ...any) []byte { return append([]byte{kind}, words(vs...)[:16]...) }
	f.Add([]byte{})
	f.Add(op(0, uint32(opDescribeDevice), uint32(0), uint64(ctlBase+4096)))
	f.Add(append(op(1), append(op(2), op(3, uint32(0), uint32(65))...)...))
	f.Add(append(op(4, uint64(0x400), uint32(5)), op(6)...))
	for i := range byte(9) {
		f.Add(append(op(i, uint64(ctlBase), uint32(1), uint32(4096)), op(i^3, uint32(3))...))
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		c := newBareCtl(t, Options{Queues: 2, Timestamps: true})
		c.up(256)
		mapped := true
		for n := 0; len(ops) >= 17 && n < 64; n, ops = n+1, ops[17:] {
			arg := ops[1:17]
			a, b := be.Uint64(arg), be.Uint64(arg[8:])
			c.count = c.read32(regEvents)
			switch ops[0] % 9 {
			case 0: // a command whose body fuzzBody makes
				c.slot(uint32(a>>32)%0x14, fuzzBody(a, b))
				c.write32(regDoorbell, c.count)
			case 1:
				c.write32(regDriverStatus, uint32(a))
			case 2: // an extended command
				in := c.bytes(ctlBase+ctlSize-4096, flowCommandLen)
				copy(in, fuzzBody(a, b)[:])
				be.PutUint16(in, uint16(a)%4)
				be.PutUint16(in[4:], uint16(b)%11)
				c.slot(opExtended, uint32(opConfigureFlowRule), uint32(flowCommandLen), uint64(ctlBase+ctlSize-4096))
				c.write32(regDoorbell, c.count)
			case 3:
				_ = c.dev.WriteRegion(registersBAR, a%regsLen, arg[8:8+b%8])
			case 4:
				_ = c.dev.WriteRegion(doorbellsBAR, a%0x4000*4, arg[8:])
				c.bell(uint32(a>>32)%3*txDoorbells+uint32(a)%5, uint32(b))
			case 5:
				_ = c.dev.WriteRegion(vfiouser.RegionConfig, a%64*4, arg[8:12])
			case 6:
				c.dev.Unmapping(ctlBase, ctlSize)
				if mapped {
					c.OK(c.space.Remove(ctlBase, ctlSize))
				} else {
					c.OK(c.space.Add(c.all()))
				}
				mapped = !mapped
				c.dev.MemoryChanged()
			case 7:
				c.OK(c.dev.Reset())
			case 8:
				c.start()
			}
		}
		if !mapped {
			c.OK(c.space.Add(c.all()))
		}
		c.OK(c.dev.Reset())
		c.Next = 64 * slotLen
		c.ring, c.slots = ctlBase, 64
		c.up(0)
	})
}

// fuzzBody makes a command's body of small numbers, powers of two, rawAddresses, addresses of memory, and any words;
// a and b are the seed.
func fuzzBody(a, b uint64) *body {
	r := rand.New(rand.NewPCG(a, b))
	var out body
	for i := 0; i < bodyLen; i += 4 {
		switch r.IntN(6) {
		case 0:
			be.PutUint32(out[i:], r.Uint32())
		case 1:
			be.PutUint32(out[i:], rawAddresses)
		case 2:
			if i%8 == 0 {
				be.PutUint64(out[i:], ctlBase+r.Uint64N(ctlSize))
				i += 4
			}
		case 3:
			be.PutUint16(out[i:], 1<<r.IntN(16))
			be.PutUint16(out[i+2:], 1<<r.IntN(16))
		default:
			be.PutUint32(out[i:], r.Uint32N(5))
		}
	}
	return &out
}

// FuzzCommands checks that encoding a decoded command keeps the fields that are not reserved.
//
// Invariant: nic/gve: No driver and no frontend makes the device panic or hang.
func FuzzCommands(f *testing.F) {
	f.Add(make([]byte, flowRuleLen))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b body
		copy(b[:], in)
		roundTrip[configureCommand](t, b[:])
		roundTrip[txCommand](t, b[:])
		roundTrip[rxCommand](t, b[:])
		roundTrip[rssCommand](t, b[:])
		var raw [flowRuleLen]byte
		copy(raw[:], in)
		r := roundTrip[flowRule](t, raw[:])
		if c, err := r.rule(); err == nil { // to the port's form and back: unchanged
			var r2 flowRule
			r2.set(&c)
			if c2, err := r2.rule(); err != nil || c2 != c {
				t.Errorf("%+v, then %+v: %v", c, c2, err)
			}
		}
	})
}

func roundTrip[T comparable](t *testing.T, b []byte) T {
	t.Helper()
	v := decode[T](b)
	again, err := binary.Append(nil, be, v)
	if v2 := decode[T](again); err != nil || v != v2 {
		t.Errorf("%+v, then %+v: %v", v, v2, err)
	}
	return v
}
