// Package badinput is the table of bad inputs: what a hostile frontend or guest sends, what it may cost, and
// the answer.
//
// Without -short, each row is run against a real `vnic serve`, by a client that controls the bytes that it sends.
// Meanwhile two innocent guests send each other frames. What the row has cost the process is measured from outside
// (proc(5)) and compared with the row's bounds. For a class without a row at a layer norow_test.go has the reason.
package badinput
