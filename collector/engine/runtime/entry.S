/* Where every aclnn...GetWorkspaceSize arrives, with its name in rax or x9: keeps all argument registers
   as they came, and hands them on together with the arguments on the stack. */
  .text
  .globl fake_aclnn_entry
  .hidden fake_aclnn_entry
  .type fake_aclnn_entry, @function
fake_aclnn_entry:
#ifdef __aarch64__
  stp x29, x30, [sp, #-16]!
  mov x29, sp
  sub sp, sp, #192
  stp x0, x1, [sp, #0]
  stp x2, x3, [sp, #16]
  stp x4, x5, [sp, #32]
  stp x6, x7, [sp, #48]
  stp q0, q1, [sp, #64]
  stp q2, q3, [sp, #96]
  stp q4, q5, [sp, #128]
  stp q6, q7, [sp, #160]
  mov x0, x9
  mov x1, sp
  add x2, x29, #16
  bl fake_aclnn_arguments
  mov sp, x29
  ldp x29, x30, [sp], #16
  ret
#else
  push %rbp
  mov %rsp, %rbp
  sub $176, %rsp
  mov %rdi, 0(%rsp)
  mov %rsi, 8(%rsp)
  mov %rdx, 16(%rsp)
  mov %rcx, 24(%rsp)
  mov %r8, 32(%rsp)
  mov %r9, 40(%rsp)
  movups %xmm0, 48(%rsp)
  movups %xmm1, 64(%rsp)
  movups %xmm2, 80(%rsp)
  movups %xmm3, 96(%rsp)
  movups %xmm4, 112(%rsp)
  movups %xmm5, 128(%rsp)
  movups %xmm6, 144(%rsp)
  movups %xmm7, 160(%rsp)
  mov %rax, %rdi
  mov %rsp, %rsi
  lea 16(%rbp), %rdx
  call fake_aclnn_arguments
  leave
  ret
#endif
  .size fake_aclnn_entry, .-fake_aclnn_entry
  .section .note.GNU-stack, "", @progbits
