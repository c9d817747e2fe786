// Package expect has the expected results of the kernel's driver selftests for each device, with
// reasons, and compares a run with them.
//
// There is a file for each series of kernels (suites/7.2.yaml: the cases of its tests, and the names of vnic's
// patches for them) and one for each device model and series (models/gve-7.2.yaml: the result of each case). The
// program embeds both. An expected result that is not pass has a class, and evidence of the kind that the class wants:
// a driver's file and line, a patch of the tests, a change of the setup with which the case passes, or a report in
// docs/found.md. Only an xfail may lack them: the test's author has given its reason. A failure with no such evidence
// is vnic's fault, and no expectation of it is written: it makes a run fail until vnic is mended. "Flaky" is no class.
//
// If there are no expectations for a program or a column, its results are not judged, but the kernel's
// complaints are. If there are none for a kernel or a device model, each result is reported as new.
package expect
