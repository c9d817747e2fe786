package kernel

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// tcpClose is TCP_CLOSE (include/net/tcp_states.h).
const tcpClose = 7

var tcpStates = [...]string{
	"0", "ESTABLISHED", "SYN-SENT", "SYN-RECV", "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "CLOSE", "CLOSE-WAIT", "LAST-ACK",
	"LISTEN", "CLOSING",
}

func tcpInfo(fd int) (*unix.TCPInfo, error) {
	return unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
}

func (c *Conn) info() (info *unix.TCPInfo, ok bool) {
	err := c.s.on(func(fd int) (err error) {
		info, err = tcpInfo(fd)
		return err
	})
	return info, err == nil
}

// progress returns a number that changes with each byte received or acknowledged; 0 if the socket is closed.
func (c *Conn) progress() uint64 {
	info, ok := c.info()
	if !ok {
		return 0
	}
	return info.Bytes_received + info.Bytes_acked
}

// mss returns the maximum segment size, or 65536 if it is unknown.
func (c *Conn) mss() int {
	if info, ok := c.info(); ok && info.Snd_mss > 0 {
		return int(info.Snd_mss)
	}
	return 1 << 16
}

// State implements devmem.Conn.
func (c *Conn) State() string {
	info, ok := c.info()
	if !ok {
		return fmt.Sprintf("closed %v->%v", c.local, c.remote)
	}
	var unread, unsent int
	_ = c.s.on(func(fd int) error {
		unread, _ = unix.IoctlGetInt(fd, unix.SIOCINQ)
		unsent, _ = unix.IoctlGetInt(fd, unix.SIOCOUTQ)
		return nil
	})
	state := fmt.Sprint(info.State)
	if int(info.State) < len(tcpStates) {
		state = tcpStates[info.State]
	}
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	return fmt.Sprintf("%s %v->%v snd{acked %d queued %d notsent %d wnd %d sends %d unacked %d lost %d retrans %d "+
		"backoff %d cwnd %d ssthresh %d rto %v rtt %v} "+
		"rcv{received %d unread %d space %d ooo %d last %dms}",
		state, c.local, c.remote,
		info.Bytes_acked, unsent, info.Notsent_bytes, info.Snd_wnd, c.sends.underWay(), info.Unacked, info.Lost,
		info.Total_retrans, info.Backoff, info.Snd_cwnd, info.Snd_ssthresh, us(info.Rto), us(info.Rtt),
		info.Bytes_received, unread, info.Rcv_space, info.Rcv_ooopack, info.Last_data_recv)
}
