// Package csitest checks the CSI driver of stowage with csi-sanity, the suite of the Kubernetes project
// for drivers. It is a module of its own, so that stowage depends neither on that suite nor on grpcurl, a tool
// of this module, with which a test in e2e does what the how-to of CSI says.
package csitest
