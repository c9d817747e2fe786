package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// span is a range of allowed numbers.
type span struct{ min, max uint32 }

func exactly(n uint32) span { return span{n, n} }

// rule describes the form of a command, and its handler.
type rule struct {
	name     string // without VFIO_USER_
	body     span   // bytes of payload
	fds      span   // descriptors in the ancillary data
	slow     bool   // whether serveOne logs that the handler took longer than QEMU waits
	handle   func(*session, *message) error
	unserved string // why the server refuses the command; empty: it serves it
}

// rules are indexed by command.
var rules = [...]rule{
	CmdVersion:        {name: "VERSION", body: span{versionLen, versionLen + maxVersionData}, handle: (*session).version},
	CmdDMAMap:         {name: "DMA_MAP", body: exactly(dmaMapLen), fds: span{0, 1}, slow: true, handle: (*session).dmaMap},
	CmdDMAUnmap:       {name: "DMA_UNMAP", body: exactly(dmaUnmapLen), slow: true, handle: (*session).dmaUnmap},
	CmdGetInfo:        {name: "DEVICE_GET_INFO", body: exactly(infoLen), handle: (*session).getInfo},
	CmdGetRegionInfo:  {name: "DEVICE_GET_REGION_INFO", body: exactly(regionInfoLen), handle: (*session).getRegionInfo},
	CmdGetRegionIOFDs: {name: "DEVICE_GET_REGION_IO_FDS", unserved: "regions have no descriptors of their own"},
	CmdGetIRQInfo:     {name: "DEVICE_GET_IRQ_INFO", body: exactly(irqInfoLen), handle: (*session).getIRQInfo},
	CmdSetIRQs: {name: "DEVICE_SET_IRQS", body: span{irqSetLen, maxPayload}, fds: span{0, MaxFDs}, slow: true,
		handle: (*session).setIRQs},
	CmdRegionRead:  {name: "REGION_READ", body: exactly(accessLen), handle: (*session).regionRead},
	CmdRegionWrite: {name: "REGION_WRITE", body: span{accessLen, maxPayload}, handle: (*session).regionWrite},
	CmdDMARead:     {name: "DMA_READ", unserved: "a command of servers"},
	CmdDMAWrite:    {name: "DMA_WRITE", unserved: "a command of servers"},
	CmdReset:       {name: "DEVICE_RESET", slow: true, handle: (*session).reset},
	CmdDirtyPages:  {name: "DIRTY_PAGES", unserved: "dirty pages are not logged"},
	CmdRegionWriteMulti: {name: "REGION_WRITE_MULTI", body: span{multiHeadLen, maxPayload},
		handle: (*session).regionWriteMulti},
	CmdFeature:      {name: "DEVICE_FEATURE", unserved: "live migration is not supported"},
	CmdMigDataRead:  {name: "MIG_DATA_READ", unserved: "live migration is not supported"},
	CmdMigDataWrite: {name: "MIG_DATA_WRITE", unserved: "live migration is not supported"},
}

// ruleFor returns the rule for a message's command. An unknown or unserved command is ENOTSUP, a payload of another
// size or another number of descriptors than the rule allows is EINVAL.
func ruleFor(m *message) (*rule, error) {
	if int(m.Command) >= len(rules) || rules[m.Command].name == "" {
		return nil, fmt.Errorf("unknown: %w", unix.ENOTSUP)
	}
	ru := &rules[m.Command]
	if ru.unserved != "" {
		return nil, fmt.Errorf("%s: %w", ru.unserved, unix.ENOTSUP)
	}
	if n := uint32(len(m.body)); n < ru.body.min || n > ru.body.max {
		return nil, fmt.Errorf("payload of %d bytes, not %d to %d: %w", n, ru.body.min, ru.body.max, unix.EINVAL)
	}
	if n := uint32(m.fds.Len()); n < ru.fds.min || n > ru.fds.max {
		return nil, fmt.Errorf("%d descriptors, not %d to %d: %w", n, ru.fds.min, ru.fds.max, unix.EINVAL)
	}
	return ru, nil
}
