// Package quota bounds what a directory may hold, by the project quota that ext4
// and xfs have when they are mounted with the option prjquota.
//
// A project is a number that each file has; a directory hands its own down to what
// is made in it. Project 0 is that of all other files. The filesystem counts what
// the files of a project use, and refuses to give them more than the project's
// limit. On ext4 a process with CAP_SYS_RESOURCE is not refused. In a directory that
// hands down its project, statfs (df) reports the limit as the size of the filesystem.
//
// The names that a machine's administrator gives to projects, in /etc/projid and
// /etc/projects, are neither read nor written.
package quota
