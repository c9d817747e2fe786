package rtnl

import (
	"errors"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch reports changes of links and addresses from now on: one value may stand for several changes. The channel is
// closed after stop, which waits for that, or after an error of the socket other than ENOBUFS.
func Watch() (changes <-chan struct{}, stop func(), err error) {
	c, err := subscribe()
	if err != nil {
		return nil, nil, err
	}
	changes, stop = watch(c)
	return changes, stop, nil
}

func subscribe() (*netlink.Conn, error) {
	return netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		Groups: unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR,
	})
}

func watch(c *netlink.Conn) (changes <-chan struct{}, stop func()) {
	out := make(chan struct{}, 1)
	go func() {
		defer close(out)
		for {
			// ENOBUFS: more changes than the socket holds.
			if _, err := c.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return
			}
			select {
			case out <- struct{}{}:
			default:
			}
		}
	}()
	return out, func() {
		_ = c.Close()
		for range out {
		}
	}
}
