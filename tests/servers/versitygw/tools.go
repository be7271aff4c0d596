//go:build tools

// Package tools names the S3 server that the tests build and run, so that
// go.sum pins every module it is made of.
package tools

import _ "github.com/versity/versitygw/cmd/versitygw"
