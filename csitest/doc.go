// Package csitest checks the CSI driver of stowage with csi-sanity, the suite of the Kubernetes project
// for drivers. It is a module of its own, so that stowage does not depend on that suite.
package csitest
