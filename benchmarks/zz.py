from benchmarks.bench_suite import *
if __name__=='__main__':
    for name in ("relu_residual_scaled","tanh_xavier_plain","relu_prenorm_scaled"):
        jobs={"plain":(plain,(name,)),"careful":(careful,(name,)),"one":(ours,(name,1,"float64",1)),"of64":(ours,(name,16,"float64",2)),"of32":(ours,(name,16,"float32",2))}
        s=by_turns(jobs,9)
        for k,v in s.items(): 
            e=16 if k in ("of64","of32","b64","b32") else 1
            print(name,k,'%.2f [%.2f %.2f]'%(median(v)/e*1e3,min(v)/e*1e3,max(v)/e*1e3), 'x plain %.2f'%(median(s['plain'])/median(v)*e))
