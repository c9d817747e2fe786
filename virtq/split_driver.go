package virtq

// driverRing is the memory of a split ring as the driver uses it.
type driverRing struct {
	mask     uint16
	flags    uint16 // the value of avail.flags in the ring
	eventIdx bool
	emulated bool // the processor may be emulated: see barrier
	fence    fence

	descs  [][descLen]byte   // the descriptor table
	avails [][availElem]byte // avail.ring
	useds  [][usedElem]byte  // used.ring

	avail      header // avail.flags, avail.idx
	usedEvent  field
	usedFlags  field
	usedIdx    field
	availEvent field
}

// init finds the ring's fields in its three parts, whose slices may be too long.
func (r *driverRing) init(size uint16, eventIdx bool, descs, avail, used []byte) (err error) {
	n := int(size)
	avail, used = avail[:availLen(n)], used[:usedLen(n)]
	*r = driverRing{
		mask:     size - 1,
		eventIdx: eventIdx,
		descs:    rows[[descLen]byte](descs[:n*descLen]),
		avails:   rows[[availElem]byte](avail[ringHeader : ringHeader+availElem*n]),
		useds:    rows[[usedElem]byte](used[ringHeader : ringHeader+usedElem*n]),
	}
	if r.avail, err = headerAt(avail); err != nil {
		return err
	}
	return fields(
		fieldPlace{&r.usedEvent, avail, len(avail) - 2},
		fieldPlace{&r.usedFlags, used, 0},
		fieldPlace{&r.usedIdx, used, 2},
		fieldPlace{&r.availEvent, used, len(used) - 2})
}

func (r *driverRing) put(i, head uint16) { le.PutUint16(r.avails[i&r.mask][:], head) }

// publish moves avail.idx from was to now. The store, with barrier if the processor may be emulated, is a full
// barrier before the load of the device's avail_event or flags.
func (r *driverRing) publish(now, was uint16) (kick bool) {
	r.avail.store(r.flags, now)
	if r.emulated {
		barrier()
	}
	if r.eventIdx {
		return needEvent(r.availEvent.load(), now, was)
	}
	return r.usedFlags.load()&usedNoNotify == 0
}

func (r *driverRing) used() uint16 { return r.usedIdx.load() }

// element reads the used element at index i once.
func (r *driverRing) element(i uint16) (id, n uint32) {
	e := le.Uint64(r.useds[i&r.mask][:])
	return uint32(e), uint32(e >> 32)
}

// disableCall sets used_event, with VIRTIO_F_EVENT_IDX, to the index before polled, which used.idx passes only after
// almost 65536 more chains.
func (r *driverRing) disableCall(idx, polled uint16) {
	if r.eventIdx {
		r.usedEvent.store(polled - 1)
		return
	}
	r.flags = availNoInterrupt
	r.avail.store(r.flags, idx)
}

func (r *driverRing) enableCall(idx, polled uint16) (more bool) {
	if r.eventIdx {
		r.usedEvent.store(polled)
		r.fence.full()
	} else {
		r.flags = 0
		r.avail.store(0, idx)
	}
	if r.emulated {
		barrier()
	}
	return r.usedIdx.load() != polled
}
