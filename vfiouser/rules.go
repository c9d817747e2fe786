package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// span is how many there may be.
type span struct{ min, max uint32 }

func exactly(n uint32) span { return span{n, n} }

// rule says what a command looks like and how it is served.
type rule struct {
	body   span // bytes of payload
	fds    span // descriptors in the ancillary data
	slow   bool // it may have to wait for the device's workers
	handle func(*session, *message) error
}

// rules are those of the commands that a Server serves.
var rules = [...]rule{
	CmdVersion:          {span{versionLen, versionLen + maxVersionData}, exactly(0), false, (*session).version},
	CmdDMAMap:           {exactly(dmaMapLen), span{0, 1}, true, (*session).dmaMap},
	CmdDMAUnmap:         {exactly(dmaUnmapLen), exactly(0), true, (*session).dmaUnmap},
	CmdGetInfo:          {exactly(infoLen), exactly(0), false, (*session).getInfo},
	CmdGetRegionInfo:    {exactly(regionInfoLen), exactly(0), false, (*session).getRegionInfo},
	CmdGetIRQInfo:       {exactly(irqInfoLen), exactly(0), false, (*session).getIRQInfo},
	CmdSetIRQs:          {span{irqSetLen, maxPayload}, span{0, MaxFDs}, true, (*session).setIRQs},
	CmdRegionRead:       {exactly(accessLen), exactly(0), false, (*session).regionRead},
	CmdRegionWrite:      {span{accessLen, maxPayload}, exactly(0), false, (*session).regionWrite},
	CmdReset:            {exactly(0), exactly(0), true, (*session).reset},
	CmdRegionWriteMulti: {span{multiHeadLen, maxPayload}, exactly(0), false, (*session).regionWriteMulti},
}

// unserved says why the commands that are known and not in rules are refused.
var unserved = map[Command]string{
	CmdGetRegionIOFDs: "regions have no descriptors of their own",
	CmdDMARead:        "a command of servers",
	CmdDMAWrite:       "a command of servers",
	CmdDirtyPages:     "dirty pages are not logged",
	CmdFeature:        "live migration is not supported",
	CmdMigDataRead:    "live migration is not supported",
	CmdMigDataWrite:   "live migration is not supported",
}

// ruleFor checks a message against what is served.
func ruleFor(m *message) (*rule, error) {
	if why, ok := unserved[m.Command]; ok {
		return nil, fmt.Errorf("%v: %s: %w", m.Command, why, unix.ENOTSUP)
	}
	if int(m.Command) >= len(rules) || rules[m.Command].handle == nil {
		return nil, fmt.Errorf("%v: unknown: %w", m.Command, unix.ENOTSUP)
	}
	ru := &rules[m.Command]
	if n := uint32(len(m.body)); n < ru.body.min || n > ru.body.max {
		return nil, fmt.Errorf("%v: payload of %d bytes, not %d to %d: %w", m.Command, n, ru.body.min, ru.body.max,
			unix.EINVAL)
	}
	if n := uint32(m.fds.Len()); n < ru.fds.min || n > ru.fds.max {
		return nil, fmt.Errorf("%v: %d descriptors, not %d to %d: %w", m.Command, n, ru.fds.min, ru.fds.max, unix.EINVAL)
	}
	return ru, nil
}
