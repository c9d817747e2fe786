package nvmetcp

import (
	"fmt"
	"syscall"
)

// status is the Status Field of a CQE (Base 4.6.1): SC in bits 7:0, SCT in 10:8, DNR in 14.
type status uint16

const statusDNR status = 1 << 14

// maxRetries is how often, at most, a Device sends a refused read or write again (the default of Linux's
// nvme_core.max_retries).
const maxRetries = 5

func (s status) code() uint16 { return uint16(s) & 0x7ff }

func (s status) ok() bool { return s.code() == 0 }

// mayRetry reports whether the status is an error without Do Not Retry (DNR).
func (s status) mayRetry() bool { return !s.ok() && s&statusDNR == 0 }

var statusTypes = [8]string{0: "generic", 1: "command specific", 2: "media", 3: "path", 7: "vendor specific"}

// statusText is the text of a status, and an errno.
type statusText struct {
	text  string
	errno syscall.Errno
}

// statuses has texts and errnos for statuses of commands (Base 4.6.1; Fabrics 2.2).
var statuses = map[uint16]statusText{
	0x001: {"invalid command opcode", syscall.EOPNOTSUPP},
	0x002: {"invalid field in command", syscall.EINVAL},
	0x003: {"command ID conflict", syscall.EPROTO},
	0x004: {"data transfer error", syscall.EIO},
	0x005: {"aborted due to power loss notification", syscall.EIO},
	0x006: {"internal error", syscall.EIO},
	0x007: {"abort requested", syscall.ECANCELED},
	0x008: {"aborted due to SQ deletion", syscall.ECANCELED},
	0x00b: {"invalid namespace or format", syscall.ENODEV},
	0x00c: {"command sequence error", syscall.EPROTO},
	0x00d: {"invalid SGL segment descriptor", syscall.EINVAL},
	0x00e: {"invalid number of SGL descriptors", syscall.EINVAL},
	0x00f: {"data SGL length invalid", syscall.EINVAL},
	0x011: {"SGL descriptor type invalid", syscall.EINVAL},
	0x015: {"operation denied", syscall.EACCES},
	0x016: {"SGL offset invalid", syscall.EINVAL},
	0x018: {"host identifier inconsistent format", syscall.EINVAL},
	0x019: {"keep alive timer expired", syscall.ETIMEDOUT},
	0x01a: {"keep alive timeout invalid", syscall.EINVAL},
	0x01b: {"aborted due to preempt and abort", syscall.ECANCELED},
	0x01c: {"sanitize failed", syscall.EIO},
	0x01d: {"sanitize in progress", syscall.EBUSY},
	0x020: {"namespace is write protected", syscall.EROFS},
	0x021: {"command interrupted", syscall.EAGAIN},
	0x022: {"transient transport error", syscall.EAGAIN},
	0x080: {"LBA out of range", syscall.ENOSPC},
	0x081: {"capacity exceeded", syscall.ENOSPC},
	0x082: {"namespace not ready", syscall.EAGAIN},
	0x083: {"reservation conflict", syscall.EBUSY},
	0x084: {"format in progress", syscall.EBUSY},

	// For Connect 0x180 to 0x183 have the meanings in connectStatuses.
	0x180: {"conflicting attributes", syscall.EINVAL},
	0x181: {"invalid protection information", syscall.EILSEQ},
	0x182: {"attempted write to read only range", syscall.EROFS},
	0x183: {"command size limit exceeded", syscall.EMSGSIZE},

	0x280: {"write fault", syscall.EIO},
	0x281: {"unrecovered read error", syscall.EIO},
	0x282: {"end-to-end guard check error", syscall.EILSEQ},
	0x283: {"end-to-end application tag check error", syscall.EILSEQ},
	0x284: {"end-to-end reference tag check error", syscall.EILSEQ},
	0x285: {"compare failure", syscall.EIO},
	0x286: {"access denied", syscall.EACCES},
	0x287: {"deallocated or unwritten logical block", syscall.ENODATA},

	0x300: {"internal path error", syscall.EIO},
	0x301: {"asymmetric access persistent loss", syscall.EIO},
	0x302: {"asymmetric access inaccessible", syscall.EIO},
	0x303: {"asymmetric access transition", syscall.EAGAIN},
	0x360: {"controller pathing error", syscall.EIO},
	0x370: {"host pathing error", syscall.EIO},
	0x371: {"command aborted by host", syscall.ECANCELED},
}

// connectStatuses has texts and errnos for the statuses that only Connect has, or has with another meaning (Fabrics
// 3.3).
var connectStatuses = map[uint16]statusText{
	0x180: {"incompatible format", syscall.EPROTONOSUPPORT},
	0x181: {"controller busy", syscall.EBUSY},
	0x182: {"invalid parameters", syscall.EINVAL},
	0x183: {"restart discovery", syscall.EAGAIN},
	0x184: {"invalid host: it is not allowed to use the subsystem", syscall.EACCES},
	0x185: {"invalid queue type", syscall.EINVAL},
	0x190: {"restart discovery", syscall.EAGAIN},
	0x191: {"authentication required, which is not supported", syscall.EACCES},
}

func (s status) in(table map[uint16]statusText) statusText {
	if t, ok := table[s.code()]; ok {
		return t
	}
	return statusText{"unknown", syscall.EIO}
}

func (s status) say(table map[uint16]statusText) string {
	kind := statusTypes[s>>8&7]
	if kind == "" {
		kind = "reserved"
	}
	retry := ""
	if s&statusDNR != 0 {
		retry = ", do not retry"
	}
	return fmt.Sprintf("%s status 0x%02x, %s%s (0x%04x)", kind, uint8(s), s.in(table).text, retry, uint16(s))
}

// commandError is the error status of a command other than a read or write.
type commandError struct {
	command string
	status  status
	result  uint64
}

func (e *commandError) table() map[uint16]statusText {
	if _, ok := connectStatuses[e.status.code()]; ok && e.command == connectName {
		return connectStatuses
	}
	return statuses
}

func (e *commandError) Error() string {
	s := e.command + ": " + e.status.say(e.table())
	if e.command == connectName && e.status.code() == 0x182 {
		s += ": " + connectFault(e.result)
		if connectFault(e.result) == "SUBNQN" {
			s += ": there is no such subsystem at this address"
		}
	}
	return s
}

// Unwrap returns the errno of the status, EIO if its table does not have the status.
func (e *commandError) Unwrap() error { return e.status.in(e.table()).errno }

// fatalErrors has the texts for a C2HTermReq's Fatal Error Status, FES (TCP 3.6.2.5).
var fatalErrors = map[uint16]string{1: "invalid PDU header field", 2: "PDU sequence error", 3: "header digest error",
	4: "data transfer out of range", 5: "data transfer limit exceeded", 6: "unsupported parameter"}

// say describes the C2HTermReq. pdu is the start of the rejected PDU, or empty if that is not known.
func (p *termReq) say(pdu []byte) string {
	text := fatalErrors[p.FES]
	if text == "" {
		text = "unknown"
	}
	s := fmt.Sprintf("FES %#x, %s", p.FES, text)
	if len(pdu) > 0 {
		s += fmt.Sprintf(" of our %v", pduType(pdu[0]))
	}
	if p.FES == 1 || p.FES == 6 { // FEI is the offset of the wrong field
		s += fmt.Sprintf(": %s", field(pdu, p.FEI))
	}
	return s
}

// field describes the field at offset off of a rejected PDU: by its name, if that is known, and the offset. pdu is
// the PDU's start, or empty.
func field(pdu []byte, off uint32) string {
	type place struct {
		t   pduType
		off uint32
	}
	names := map[place]string{{typeICReq, 8}: "PFV", {typeICReq, 10}: "HPDA", {typeICReq, 11}: "DGST",
		{typeICReq, 12}: "MAXR2T", {typeH2CData, 8}: "CCCID", {typeH2CData, 10}: "TTAG", {typeH2CData, 12}: "DATAO",
		{typeH2CData, 16}: "DATAL"}
	offset := fmt.Sprintf("at offset %d", off)
	switch {
	case off < commonLen:
		return [commonLen]string{"PDU-Type", "FLAGS", "HLEN", "PDO", "PLEN", "PLEN", "PLEN", "PLEN"}[off] + " " + offset
	case len(pdu) > 0 && names[place{pduType(pdu[0]), off}] != "":
		return names[place{pduType(pdu[0]), off}] + " " + offset
	case len(pdu) > 0 && pduType(pdu[0]) == typeCapsuleCmd && off < commandLen:
		return fmt.Sprintf("SQE byte %d %s", off-commonLen, offset)
	}
	return "the field " + offset
}
